#!/usr/bin/env bash
# bench_node.sh [argument...]: builds tidegate_bench_node, free of torch, and runs it with these arguments.
. "$(dirname "$0")/common.sh"

scripts/build_tools.sh

configure() { cmake --preset release -DTIDEGATE_BUILD_SHIM=OFF; }
step "configure release" configure >&2
step "build tidegate_bench_node" \
  cmake --build --preset release --parallel "$JOBS" --target tidegate_bench_node >&2
exec build/release/bench/collectives/tidegate_bench_node "$@"
