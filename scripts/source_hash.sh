#!/usr/bin/env bash
# Prints one hash of everything that the installed package is built from.
. "$(dirname "$0")/common.sh"

folders=()
for folder in cmake common collectives offload backend python; do
  [ ! -d "$folder" ] || folders+=("$folder")
done
find CMakeLists.txt pyproject.toml examples/train_fsdp2.py "${folders[@]}" \
  -type f ! -path '*/__pycache__/*' -print0 2>/dev/null |
  LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
