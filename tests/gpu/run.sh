#!/usr/bin/env bash
# Builds tidegate for the torch that is here, then runs the CPU suite and the tests that need a GPU.
# For machines that have a torch (any build of it) but neither network nor package manager; what is
# missing there comes from .offline (`make offline-bundle`). Needs no root and writes only below
# build/gpu and $OUT.
#
#   tests/gpu/run.sh [STAGE...]     of: build gpu conformance integration python unit (all)
#
#   PYTHON=python3       the interpreter that has torch
#   OUT=build/gpu/out    where the summary and the logs go
#   JOBS                 parallel compilations (as many as there are cores)
#   LIMIT_S=600          seconds that a stage may take
#   TOTAL_S              seconds that all of it may take (no limit); what is not run then fails
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PYTHON="${PYTHON:-python3}"
WORK="$PWD/build/gpu"
OUT="${OUT:-$WORK/out}"
JOBS="${JOBS:-$(nproc)}"
LIMIT_S="${LIMIT_S:-600}"
TOTAL_S="${TOTAL_S:-86400}"
BUNDLE="$PWD/.offline"
SITE="$WORK/site"

stages=("$@")
[ $# -gt 0 ] || stages=(build gpu conformance integration python unit)
for stage in "${stages[@]}"; do
  case "$stage" in
    build | gpu | conformance | integration | python | unit) ;;
    *)
      sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
      exit 2
      ;;
  esac
done

mkdir -p "$WORK/tmp" "$OUT"
OUT=$(cd "$OUT" && pwd)
SUMMARY="$OUT/summary.txt"
: >"$SUMMARY"
export TMPDIR="$WORK/tmp"
# The path of a Unix socket has at most 107 bytes, and the tests make some below TMPDIR.
if [ ${#TMPDIR} -gt 60 ]; then
  TMPDIR=$(mktemp -d /tmp/tidegate.XXXXXX)
fi
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
export CCACHE_DIR="${CCACHE_DIR:-$WORK/ccache}" TORCHINDUCTOR_CACHE_DIR="$WORK/inductor"
export CMAKE_BUILD_PARALLEL_LEVEL="$JOBS"
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL
# Of the plugins that an environment may have only the one that the suites need.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTEST_ADDOPTS="-p pytest_timeout"

say() { printf '%s\n' "$*" | tee -a "$SUMMARY"; }
give_up() {
  say "$*"
  exit 1
}
has() { "$PYTHON" -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$1'))"; }

chosen() { [[ " ${stages[*]} " == *" $1 "* ]]; }

# The summary comes last however the run ends, and nothing that it started outlives it.
failed=0
running=  # the process of the stage that is running
gathering= # whether that is the suites, whose table is not yet in the summary
gather() {
  gathering=
  cat "$WORK"/suites/*.log >"$OUT/suites.log" || true
  cat "$WORK/suites/table.txt" >>"$SUMMARY" || say "no suite ran to its end"
}
finish() {
  local status=$?
  if [ -n "$running" ]; then
    kill "$running" || true
    wait "$running" || true
  fi 2>/dev/null
  [ -z "$gathering" ] || gather
  say "total         $SECONDS s" >/dev/null
  printf '\n== summary\n'
  cat "$SUMMARY"
  [ "$status" = 0 ] || printf '== FAILED\n'
  [ "$TMPDIR" = "$WORK/tmp" ] || rm -rf "$TMPDIR"
}
trap finish EXIT
trap 'say "ended by a signal"; exit 143' TERM INT HUP

# What no bundle can bring: all of it in one message.
"$PYTHON" -c 'import sys; assert sys.version_info >= (3, 10)' 2>/dev/null ||
  give_up "$PYTHON is no Python 3.10 or later: name one that has torch with PYTHON="
# CMake and Ninja may be packages of the interpreter's own environment.
PATH="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH"
lacks=()
for package in numpy pip torch; do
  has "$package" || lacks+=("the package $package")
done
for tool in "${CXX:-c++}" cmake ninja; do
  command -v "$tool" >/dev/null || lacks+=("the command $tool")
done
"$PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' \
  2>/dev/null || lacks+=("the header Python.h of that interpreter")
if [ ${#lacks[@]} -gt 0 ]; then
  give_up "$PYTHON or its machine lacks $(printf '%s, ' "${lacks[@]}" | sed 's/, $//')"
fi

# Where it was started, what it runs on: the table means nothing without.
"$PYTHON" - 2>&1 <<'PY' | tee -a "$SUMMARY" || give_up "$PYTHON has no torch that can be used"
import os, platform, subprocess, torch

def first(command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]
    except (OSError, IndexError):
        return "none"

gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
    raise SystemExit(f"torch {torch.__version__} is too old: 2.11 or later is served")
print(f"torch {torch.__version__}, Python {platform.python_version()}, GPU {gpu}")
print(f"{len(os.sched_getaffinity(0))} cores, Linux {platform.release()}")
print(f"{first(['c++', '--version'])}; {first(['cmake', '--version'])}; ninja {first(['ninja', '--version'])}")
PY

# The seconds that a stage may take: what is left of all, and no more than the limit of one.
limit() {
  local left=$((TOTAL_S - SECONDS))
  [ "$left" -gt "$LIMIT_S" ] && echo "$LIMIT_S" || echo "$left"
}

# stage <name> <command>...: with its output in a log; a line of the summary says how it went.
stage() {
  local name="$1" start=$SECONDS status=0 verdict=ok limit
  limit=$(limit)
  shift
  printf '== %s\n' "$name"
  if [ "$limit" -le 0 ]; then
    failed=1
    say "$(printf '%-13s FAILED (not run: no time was left)' "$name")"
    return 1
  fi
  # In the background, because a trap waits for a command in the foreground.
  timeout --kill-after=10 "$limit" "$@" >"$OUT/$name.log" 2>&1 &
  running=$!
  wait "$running" || status=$?
  running=
  if [ "$status" != 0 ]; then
    verdict="FAILED (exit $status)"
    [ "$status" != 124 ] || verdict="FAILED (ended after $limit s)"
    tail -n 60 "$OUT/$name.log"
    failed=1
  fi
  say "$(printf '%-13s %-7s %5d s' "$name" "$verdict" $((SECONDS - start)))"
  return "$status"
}

# What the environment lacks, beside the environment: nothing of it is changed.
missing=()
has scikit_build_core || missing+=(scikit-build-core)
has pytest || missing+=(pytest)
has pytest_timeout || missing+=(pytest-timeout)
if [ ${#missing[@]} -gt 0 ]; then
  [ -d "$BUNDLE/wheels" ] ||
    give_up "$PYTHON has no ${missing[*]} and there is no .offline: run make offline-bundle where there is a network"
  stage tools "$PYTHON" -m pip install --find-links "$BUNDLE/wheels" --upgrade \
    --target "$WORK/tools" "${missing[@]}" || exit 1
fi
# A folder with the package and its .dist-info is enough for torch to find the entry points.
export PYTHONPATH="$SITE:$WORK/tools${PYTHONPATH:+:$PYTHONPATH}"

# Sources that CMake would otherwise fetch where the system has none.
sources=()
for project in googletest highway nlohmann_json; do
  [ ! -d "$BUNDLE/$project" ] ||
    sources+=("-DFETCHCONTENT_SOURCE_DIR_${project^^}=$BUNDLE/$project")
done

if chosen build; then
  stage build env CMAKE_ARGS="${sources[*]}" "$PYTHON" -m pip install -v --no-deps \
    --no-build-isolation --upgrade --target "$SITE" --config-settings "build-dir=$WORK/shim" . || exit 1
fi

suites=()
# What needs the GPU first: a run that is cut short has at least that.
for name in gpu conformance integration python; do
  ! chosen "$name" || suites+=("$name")
done
if [ ${#suites[@]} -gt 0 ]; then
  rm -rf "$WORK/suites"
  "$PYTHON" -m tests.support.suites --into "$WORK/suites" --limit "$LIMIT_S" \
    --total $((TOTAL_S - SECONDS)) "${suites[@]}" &
  running=$! gathering=yes
  wait "$running" || failed=1
  running=
  gather
fi

unit() {
  cmake -S . -B "$WORK/unit" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$PYTHON" \
    -DTIDEGATE_BUILD_SHIM=OFF -DTIDEGATE_BUILD_TESTS=ON "$@" &&
    cmake --build "$WORK/unit" --parallel "$JOBS" &&
    ctest --test-dir "$WORK/unit" --parallel "$JOBS" --output-on-failure --no-tests=error
}
export -f unit
export WORK JOBS PYTHON
chosen unit && { stage unit bash -c 'unit "$@"' unit "${sources[@]}" || true; }
exit "$failed"
