#!/usr/bin/env bash
# bench_docs.sh [part...]: measures anew and writes the tables of docs/benchmarks/, all or these parts:
# node load idle peers torch training targets. TURN=<command> goes before every program that measures, such as
# "flock FILE" where several may want the machine. The samples stay in build/bench/.
. "$(dirname "$0")/common.sh"

parts=("$@")
[ "${#parts[@]}" -gt 0 ] || parts=(node load idle peers torch training targets)
read -r -a turn <<<"${TURN:-}"
samples=build/bench
tables=docs/benchmarks
mkdir -p "$samples" "$tables"
collectives=(all_gather reduce_scatter all_reduce broadcast all_to_all gather scatter barrier)
node=build/release/bench/collectives/tidegate_bench_node

# write <name> <command>...: its output becomes the table, once it has succeeded.
write() {
  local name="$1"
  shift
  printf '==> %s\n' "$tables/$name.md"
  { printf '<!-- Written by scripts/bench_docs.sh. -->\n\n' && "$@"; } >"$samples/$name.md"
  mv "$samples/$name.md" "$tables/$name.md"
}
measure() { "${turn[@]}" "$@"; }

# A program each, so that nobody waits long for a turn.
peers() {
  local collective ranks
  rm -f "$samples"/peers-*.json
  for ranks in 2 4; do
    for collective in "${collectives[@]}"; do
      measure "$VENV_PYTHON" -m bench.peers "$collective" --ranks "$ranks" \
        -J "$samples/peers-$collective-$ranks.json" >/dev/null
    done
  done
  "$VENV_PYTHON" -m bench.peers --from "$samples"/peers-*.json
}

scripts/bench_node.sh --help >/dev/null
for part in "${parts[@]}"; do
  case "$part" in
    node) write node measure "$node" --resident --passes 3 --rounds 5 -J "$samples/node.json" ;;
    load)
      write load measure "$node" all_gather all_reduce barrier --sizes 8K --load --passes 3 --rounds 5 \
        -J "$samples/load.json"
      ;;
    idle) write idle measure "$node" --idle --ranks 4 -J "$samples/idle.json" ;;
    peers) write peers peers ;;
    torch)
      scripts/setup.sh
      write torch scripts/bench_torch.sh
      ;;
    training)
      scripts/setup.sh
      write training measure "$VENV_PYTHON" -m bench.fsdp_step --markdown \
        --json "$samples/training.json"
      ;;
    targets) write targets "$VENV_PYTHON" -m bench.targets "$samples"/*.json ;;
    *)
      printf 'bench_docs.sh: no part %s\n' "$part" >&2
      exit 2
      ;;
  esac
done
