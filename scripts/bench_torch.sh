#!/usr/bin/env bash
# bench_torch.sh [part...]: `tidegate bench` beside gloo, as tables, all or these parts: tensors 16bit
# ranks objects, and which aims hold. TURN=<command> goes before every program that measures. The
# samples stay in build/bench/.
. "$(dirname "$0")/common.sh"

parts=("$@")
[ "${#parts[@]}" -gt 0 ] || parts=(tensors 16bit ranks objects)
read -r -a turn <<<"${TURN:-}"
samples=build/bench
mkdir -p "$samples"
collectives=(all_gather reduce_scatter all_reduce broadcast all_to_all gather scatter)
objects=(all_gather_object broadcast_object_list gather_object scatter_object_list)
sizes=64K,1M,16M,128M
measured=()

# measure <name> <title> <argument of tidegate bench>...
measure() {
  local name="$1" title="$2"
  shift 2
  printf '## %s\n\n' "$title"
  measured+=("$samples/$name.json")
  "${turn[@]}" "$VENV_PYTHON" -m tidegate bench --markdown -J "$samples/$name.json" "$@"
  printf '\n'
}

for part in "${parts[@]}"; do
  case "$part" in
    tensors)
      measure torch 'Tensors of fp32' "${collectives[@]}" barrier --sizes "8K,$sizes" --ranks 2,4 \
        --backends tidegate,gloo,null
      ;;
    16bit)
      for type in bfloat16 half; do
        measure "torch-$type" "Sums of $type" reduce_scatter all_reduce -d "$type" --sizes "$sizes" \
          --ranks 2,4 --backends tidegate,gloo
      done
      ;;
    ranks)
      measure torch-ranks 'Eight ranks' "${collectives[@]}" barrier --sizes "$sizes" --ranks 8 \
        --backends tidegate,gloo
      ;;
    objects)
      measure torch-objects 'Objects' "${objects[@]}" --sizes 1K,64K,1M,16M --ranks 2,4 \
        --backends tidegate,gloo
      ;;
    *)
      printf 'bench_torch.sh: no part %s\n' "$part" >&2
      exit 2
      ;;
  esac
done
printf '## Aims\n'
"$VENV_PYTHON" -m bench.targets "${measured[@]}"
