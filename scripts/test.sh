#!/usr/bin/env bash
# test.sh [all]: every suite. ThreadSanitizer leaves out what has one thread. Without "all" it runs
# the tests of the code that shares memory between threads, AddressSanitizer leaves out what proves,
# prices and simulates schedules (minutes of one thread), and the Python suites
# run a seeded slice of their matrices.
. "$(dirname "$0")/common.sh"

tsan_slice=(-L 'transport|ipc|offload_t|offload$')
asan_slice=(-LE 'collectives_(verifier|simulator|planner)')
fuzz_seconds=5
if [ "${1:-}" = all ]; then
  tsan_slice=(-LE 'collectives_(algorithms|executor$|planner|schedule|simulator|topology|verifier)|offload_optim')
  asan_slice=()
  fuzz_seconds=60
  export TIDEGATE_TEST_ALL=1
fi

scripts/setup.sh
scripts/unit.sh release
scripts/unit.sh asan "${asan_slice[@]}"
scripts/unit.sh tsan "${tsan_slice[@]}"
scripts/fuzz.sh "$fuzz_seconds"
[ "${1:-}" != all ] || scripts/instructions.sh

# Most of a suite's time is one processor's, that of starting ranks, so files run two at a time. Suites
# that sum up what they found run by themselves.
"$VENV_PYTHON" -m pytest tests/conformance tests/upstream
"$VENV_PYTHON" -m pytest --numprocesses 2 --dist loadfile \
  tests/python tests/integration tests/faults tests/gpu
