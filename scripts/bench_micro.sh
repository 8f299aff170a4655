#!/usr/bin/env bash
# bench_micro.sh [FILTER]: builds bench/micro and runs its benchmarks whose name matches FILTER.
# Installs google-benchmark where it may. TURN=<command> goes before the program that measures.
. "$(dirname "$0")/common.sh"

read -r -a turn <<<"${TURN:-}"

scripts/build_tools.sh
if [ ! -f /usr/include/benchmark/benchmark.h ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  step "package libbenchmark-dev" \
    env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends libbenchmark-dev
fi
step "configure release" cmake --preset release -DTIDEGATE_BUILD_SHIM=OFF
step "build tidegate_micro" cmake --build --preset release --parallel "$JOBS" --target tidegate_micro
"${turn[@]}" build/release/bench/micro/tidegate_micro --benchmark_filter="${1:-.}"
