#!/usr/bin/env bash
# unit.sh <preset> [ctest argument...]: builds the C++ unit tests of a preset and runs them.
. "$(dirname "$0")/common.sh"
preset="$1"
shift

scripts/build_tools.sh

# The unit tests are free of torch; the shim is built by setup.sh.
configure() { cmake --preset "$preset" -DTIDEGATE_BUILD_SHIM=OFF; }
step "configure $preset" configure
step "build $preset" cmake --build --preset "$preset" --parallel "$JOBS"
ctest --preset "$preset" --parallel "$JOBS" "$@"
