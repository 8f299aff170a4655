#!/usr/bin/env bash
# Leaves an environment in which any script can use the backend. Does only what changed.
. "$(dirname "$0")/common.sh"

scripts/build_tools.sh

python_packages=("torch==$TORCH" numpy pytest pytest-timeout pytest-xdist hypothesis expecttest
  'rich>=13' 'scikit-build-core>=0.10')
once torch "${python_packages[*]}" "torch $TORCH, numpy, pytest, hypothesis, rich and scikit-build-core" \
  "$VENV_PYTHON" -m pip install "${python_packages[@]}"

install_package() {
  "$VENV_PYTHON" -m pip install --no-build-isolation --no-deps --force-reinstall \
    --config-settings "build-dir=build/python-$TORCH" .
}
export CMAKE_BUILD_PARALLEL_LEVEL="$JOBS"
once package "$TORCH $(scripts/source_hash.sh)" "tidegate for torch $TORCH" install_package
