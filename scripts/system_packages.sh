#!/usr/bin/env bash
# Installs the Debian packages that are missing, or says in one line which to install.
. "$(dirname "$0")/common.sh"

can_compile() { echo "$1" | c++ -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1; }
python_can() { "$PYTHON" -c "$1" >/dev/null 2>&1; }

required=()
can_compile '#include <span>' || required+=(g++)
python_can 'import sys; assert sys.version_info >= (3, 10)' || required+=(python3)
python_can 'import ensurepip, venv' || required+=(python3-venv)
python_can 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' ||
  required+=(python3-dev)

# Without these the build takes longer: pip has CMake and Ninja, and CMake fetches sources.
optional=()
cmake_version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p') || true
at_least "${cmake_version:-0}" 3.25 || optional+=(cmake)
command -v ninja >/dev/null || optional+=(ninja-build)
can_compile '#include <gmock/gmock.h>' || optional+=(libgtest-dev libgmock-dev)
can_compile '#include <nlohmann/json.hpp>' || optional+=(nlohmann-json3-dev)
can_compile '#include <hwy/highway.h>' || optional+=(libhwy-dev)
command -v ccache >/dev/null || optional+=(ccache)

missing="${required[*]} ${optional[*]}"
if [ "$missing" = " " ]; then
  exit 0
fi

as_root=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" != 0 ]; then
  as_root=(sudo -n "${as_root[@]}")
fi
apt_install() { "${as_root[@]}" apt-get install -q -y --no-install-recommends "$@"; }
install_missing() {
  local package
  "${as_root[@]}" apt-get update -q || echo "going on with the package lists that are there"
  if [ ${#required[@]} -gt 0 ]; then
    apt_install "${required[@]}" || return 1
  fi
  for package in "${optional[@]}"; do
    apt_install "$package" || echo "going on without $package"
  done
}

if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
  # The key is what was missing: an optional package that cannot be had is tried once. The stamp
  # outlives the environment, which is made anew after this.
  # shellcheck disable=SC2034
  STAMPS=build/stamps
  once system-packages "$missing" "system packages: ${missing# }" install_missing
  exit 0
fi
if [ ${#required[@]} -gt 0 ]; then
  echo "Please install what is missing, then run this again: sudo apt-get install ${missing# }" >&2
  exit 1
fi
