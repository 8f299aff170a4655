#!/usr/bin/env bash
# Makes the virtual environment and gives it CMake and Ninja where the system's are missing or old.
. "$(dirname "$0")/common.sh"

scripts/system_packages.sh

make_environment() {
  rm -rf "$VENV" &&
    "$PYTHON" -m venv "$VENV" &&
    "$VENV_PYTHON" -m pip install 'pip>=23'
}
if ! "$VENV_PYTHON" -c '' 2>/dev/null; then
  rm -rf "$VENV"
fi
once environment "$("$PYTHON" --version)" "virtual environment $VENV" make_environment

tools=()
cmake_version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p') || true
at_least "${cmake_version:-0}" 3.25 || tools+=('cmake>=3.25')
command -v ninja >/dev/null || tools+=(ninja)
if [ ${#tools[@]} -gt 0 ]; then
  step "build tools from pip: ${tools[*]}" "$VENV_PYTHON" -m pip install "${tools[@]}"
fi
