#!/usr/bin/env bash
# bench_peers.sh [argument...]: builds tidegate_bench_node and runs it beside the MPI libraries that are
# installed, with these arguments of `python -m bench.peers`. Installs nothing: bench/README.md says how.
. "$(dirname "$0")/common.sh"

scripts/bench_node.sh --help >/dev/null
exec "$VENV_PYTHON" -m bench.peers "$@"
