#!/usr/bin/env bash
# An environment over .venv that also has DeepSpeed, a rival of `make bench-offload` and nothing that
# the product needs: .venv-deepspeed shows the torch and the tidegate of .venv, and has only what pip
# adds to them. Builds DeepSpeed's CPU Adam, which it compiles where it is used. Prints the interpreter.
. "$(dirname "$0")/common.sh"

scripts/setup.sh >&2

packages=$("$VENV_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
base_python="$VENV_PYTHON"
VENV="$VENV-deepspeed"
VENV_PYTHON="$PWD/$VENV/bin/python"
STAMPS="$VENV/stamps"
PATH="$PWD/$VENV/bin:$PATH"
export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$PWD/build/deepspeed-$TORCH"

make_environment() {
  rm -rf "$VENV" &&
    "$base_python" -m venv "$VENV" &&
    printf '%s\n' "$packages" >"$("$VENV_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
}
install() { "$VENV_PYTHON" -m pip install deepspeed ninja setuptools; }
build_cpu_adam() {
  "$VENV_PYTHON" -c 'from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()'
}
once environment "$("$base_python" --version) $packages" "environment $VENV" make_environment >&2
once deepspeed "deepspeed for torch $TORCH" "DeepSpeed from pip" install >&2
once cpu_adam "$(uname -n) $TORCH" "DeepSpeed's CPU Adam (a minute)" build_cpu_adam >&2
printf '%s\n' "$VENV_PYTHON"
