#!/usr/bin/env bash
# lint.sh [fix]: the checks of style and types that no compiler makes. With "fix", puts right what
# the tools can put right themselves.
. "$(dirname "$0")/common.sh"

scripts/setup.sh  # the stub is made from the built shim
linters=('ruff==0.17.*' 'mypy==2.4.*' 'clang-format==23.1.*' 'clang-tidy==23.1.*'
  'pybind11-stubgen==3.*')
once linters "${linters[*]}" "linters: ${linters[*]}" "$VENV_PYTHON" -m pip install "${linters[@]}"

if [ "${1:-}" = fix ]; then
  ruff_check=(--fix) ruff_format=() clang_format=(-i) stubs=()
else
  ruff_check=() ruff_format=(--check) clang_format=(--dry-run -Werror) stubs=(--check)
fi

# All of them run, so that one round of mending is enough.
status=0
"$VENV_PYTHON" -m ruff check "${ruff_check[@]}" . || status=1
"$VENV_PYTHON" -m ruff format "${ruff_format[@]}" . || status=1
find common collectives offload backend python bench tests \( -name '*.h' -o -name '*.cc' \) -print0 |
  xargs -0 "$VENV/bin/clang-format" "${clang_format[@]}" || status=1
"$VENV_PYTHON" -m mypy || status=1
# clang-tidy reads the compile commands of a build that is only configured: debug, with the shim, and
# every source by itself. The first run takes minutes, later ones look at what changed.
configure_tidy() {
  cmake --preset debug -B build/tidy -DPython_EXECUTABLE="$VENV_PYTHON" \
    -DTIDEGATE_BUILD_SHIM=ON -DCMAKE_UNITY_BUILD=OFF
}
if [ "${1:-}" != fix ]; then
  step "configure for clang-tidy" configure_tidy &&
    "$VENV_PYTHON" scripts/tidy.py "$VENV/bin/clang-tidy" build/tidy --jobs "$JOBS" || status=1
fi
# The stub is that of the default torch's shim.
if [ "$TORCH" = "$DEFAULT_TORCH" ]; then
  "$VENV_PYTHON" scripts/stubs.py "${stubs[@]}" || status=1
fi
exit "$status"
