#!/usr/bin/env bash
# instructions.sh [--record]: counts the instructions of bench/instructions by callgrind and compares
# them with bench/instructions/budget.json, or records them there. Skips, with the reason, where there
# is no valgrind or the toolchain is not the one that the budget was recorded with.
. "$(dirname "$0")/common.sh"

scripts/build_tools.sh
if ! command -v valgrind >/dev/null; then
  echo "==> instructions SKIPPED: no valgrind (sudo apt-get install valgrind)"
  exit 0
fi
step "configure release" cmake --preset release -DTIDEGATE_BUILD_SHIM=OFF
step "build tidegate_instructions" \
  cmake --build --preset release --parallel "$JOBS" --target tidegate_instructions
"$VENV_PYTHON" scripts/instructions.py build/release/bench/instructions/tidegate_instructions "$@"
