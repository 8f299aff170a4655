#!/usr/bin/env bash
# versions.sh [TORCH...]: builds the package for each torch in an environment of its own (6 GB for
# one with CUDA), runs what every one of them has to pass, and prints the table of docs/versions.md.
# Logs and JUnit files stay in build/versions/<torch>.
. "$(dirname "$0")/common.sh"

versions=("$@")
[ $# -gt 0 ] || versions=(2.11.0 "$DEFAULT_TORCH" 2.14.1 2.15.0)

# One torch in a process of its own: common.sh derives the environment from TORCH.
one_torch() {
  TORCH="$1" bash -c '
    . scripts/common.sh
    scripts/setup.sh && exec "$VENV_PYTHON" -m tests.support.suites --into "$0" "${@}"
  ' "$2" registration conformance rows
}

folders=()
for version in "${versions[@]}"; do
  folder="build/versions/$version"
  folders+=("$folder")
  rm -rf "$folder"
  printf '== torch %s\n' "$version"
  one_torch "$version" "$folder" || printf '== torch %s FAILED\n' "$version"
done

"$PYTHON" -m tests.support.versions "${folders[@]}"
