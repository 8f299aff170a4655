#!/usr/bin/env bash
# fuzz.sh [SECONDS]: runs each libFuzzer target of tests/fuzz for SECONDS (60), starting from its seeds
# and from what earlier runs found worth keeping. Fails on a finding, whose input it leaves in
# build/fuzz-findings. Installs clang where it may; without one it skips, with the reason.
. "$(dirname "$0")/common.sh"
seconds="${1:-60}"

FINDINGS=build/fuzz-findings
PACKAGES=(clang-19 libclang-rt-19-dev)

# Prints a clang that has libFuzzer and the C++20 of this project: 16 is the first that has both.
find_clang() {
  local candidate
  for candidate in "${CLANG:-}" clang++ clang++-{22,21,20,19,18,17,16}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    printf '%s\n' '#include <cstddef>' '#include <cstdint>' '#include <source_location>' \
      'auto here = std::source_location::current();' \
      'extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }' |
      "$candidate" -std=c++20 -fsanitize=fuzzer,address -x c++ - -o build/fuzz-probe \
        >/dev/null 2>&1 || continue
    command -v "$candidate"
    return
  done
  return 1
}

# shellcheck disable=SC2329 # `once` calls it
install_clang() {
  if ! command -v apt-get >/dev/null; then
    echo "there is no apt-get here"
  elif [ "$(id -u)" = 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${PACKAGES[@]}"
  elif sudo -n true 2>/dev/null; then
    sudo -n DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      "${PACKAGES[@]}"
  else
    echo "this user may not install packages"
  fi || true # that is tried once: whether it helped, find_clang says
}

if ! clang=$(find_clang); then
  STAMPS=build/stamps once clang "${PACKAGES[*]}" "packages: ${PACKAGES[*]}" install_clang
  if ! clang=$(find_clang); then
    echo "==> fuzz SKIPPED: no clang with libFuzzer (sudo apt-get install ${PACKAGES[*]}, or set CLANG)"
    exit 0
  fi
fi

scripts/build_tools.sh
step "configure fuzz" cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang"
step "build fuzz" cmake --build --preset fuzz --parallel "$JOBS" --target fuzzers

# fuzz <target> <seeds> [dictionary]
fuzz() {
  local corpus="build/fuzz-corpus/$1"
  mkdir -p "$corpus" "$FINDINGS"
  # A broken invariant is an exception that nobody catches: libFuzzer reports the abort.
  ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
    "build/fuzz/tests/fuzz/$1" "$corpus" "$2" ${3:+-dict="$3"} -max_total_time="$seconds" \
    -max_len=16384 -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$FINDINGS/$1-" \
    -print_final_stats=1
}

while read -r target seeds dictionary; do
  step "fuzz $target for $seconds s" fuzz "$target" "$seeds" "$dictionary"
  sed -n 's/^stat::number_of_executed_units: *\(.*\)/    \1 inputs, no finding/p' \
    "$LOGS/fuzz-${target//_/-}-for-$seconds-s.log" 2>/dev/null || true
done <build/fuzz/fuzzers.txt
