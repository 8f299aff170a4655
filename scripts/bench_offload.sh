#!/usr/bin/env bash
# bench_offload.sh [argument...]: `tidegate bench optimizer` with these arguments beside torch and, where it
# can be installed, DeepSpeed; without arguments all scenarios at 1 thread and at all processors, and then the
# engine's parts by themselves. TURN=<command> goes before every program that measures.
. "$(dirname "$0")/common.sh"

read -r -a turn <<<"${TURN:-}"
export TORCH_EXTENSIONS_DIR="$PWD/build/deepspeed-$TORCH" DS_ACCELERATOR=cpu
if ! python=$(scripts/deepspeed.sh); then
  printf 'bench_offload.sh: no DeepSpeed here, so it is skipped\n' >&2
  python="$VENV_PYTHON"
fi

ceiling=build/bench_offload_ceiling.so
build_ceiling() {
  "${CXX:-c++}" -O3 -march=native -fopenmp -shared -fPIC bench/offload/ceiling.cc -o "$ceiling"
}
step "the ceiling, for this processor" build_ceiling >&2

arguments=("$@")
[ "${#arguments[@]}" -gt 0 ] || arguments=(--scenario all --vs torch,torch-foreach,deepspeed)
arguments+=(--ceiling "$ceiling")
status=0
"${turn[@]}" "$python" -m tidegate bench optimizer "${arguments[@]}" || status=$?
if [ $# = 0 ]; then
  scripts/build_tools.sh >&2
  step "configure release" cmake --preset release -DTIDEGATE_BUILD_SHIM=OFF >&2
  step "build tidegate_bench_step" \
    cmake --build --preset release --parallel "$JOBS" --target tidegate_bench_step >&2
  printf '\n'
  "${turn[@]}" build/release/bench/offload/tidegate_bench_step || status=$?
  printf '\n'
  scripts/bench_micro.sh '^(offload|pool|arena)/' || status=$?
fi
exit "$status"
