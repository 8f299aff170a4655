# shellcheck shell=bash disable=SC2034
# Shared by the scripts of this folder, which source it from the repository root. The settings are
# environment variables, so that `make build TORCH=2.14.1 JOBS=4` reaches every script.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DEFAULT_TORCH=2.13.0
TORCH="${TORCH:-$DEFAULT_TORCH}"
PYTHON="${PYTHON:-python3}"
# A translation unit with torch headers needs about 1 GB.
JOBS="${JOBS:-2}"

# Each torch has an environment and a build folder of its own, so changing TORCH rebuilds nothing.
VENV=.venv
if [ "$TORCH" != "$DEFAULT_TORCH" ]; then
  VENV=".venv-$TORCH"
fi
VENV_PYTHON="$PWD/$VENV/bin/python"
# What pip may have brought (cmake, ninja) goes before what the system has.
PATH="$PWD/$VENV/bin:$PATH"
STAMPS="$VENV/stamps"
LOGS=build/logs
mkdir -p "$LOGS"

# step <title> <command>...: runs it with its output in a log, shows the end of that if it fails,
# and says how long it took. V=1 shows all output. A command that is a function checks its own
# commands: errexit does not reach into it.
step() {
  local title="$1" log start status=0
  shift
  log="$LOGS/$(tr -cs 'A-Za-z0-9.\n' '-' <<<"$title").log"
  start=$SECONDS
  printf '==> %s\n' "$title"
  if [ -n "${V:-}" ]; then
    "$@" || status=$?
  else
    "$@" >"$log" 2>&1 || status=$?
  fi
  if [ "$status" != 0 ]; then
    [ -n "${V:-}" ] || tail -n 60 "$log"
    printf '==> %s FAILED after %d s (exit %d; log: %s)\n' \
      "$title" $((SECONDS - start)) "$status" "$log"
    return "$status"
  fi
  printf '    done in %d s\n' $((SECONDS - start))
}

# once <name> <key> <title> <command>...: a step that is skipped while its key stays the same.
once() {
  local stamp="$STAMPS/$1" key="$2" title="$3"
  shift 3
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
    printf '==> %s: up to date\n' "$title"
    return
  fi
  rm -f "$stamp"
  step "$title" "$@"
  mkdir -p "$STAMPS"
  printf '%s' "$key" >"$stamp"
}

# at_least <have> <want>: compares dotted version numbers.
at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}
