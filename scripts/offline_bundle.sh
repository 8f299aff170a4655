#!/usr/bin/env bash
# Makes .offline/: what tests/gpu/run.sh needs where there is neither a network nor a package
# manager, beyond a CUDA torch, numpy, a compiler, CMake and Ninja. Sources and pure-Python wheels
# only, so that it serves every Python >= 3.11 and every machine.
. "$(dirname "$0")/common.sh"

BUNDLE=.offline
MAX_MIB=64 # What the machines it is carried to accept.

scripts/build_tools.sh

# pytest needs more packages on 3.10, and pip reads such conditions for the Python that it runs in.
wheels=(pytest pytest-timeout 'scikit-build-core>=0.10')
fetch_wheels() {
  rm -rf "$BUNDLE/wheels"
  "$VENV_PYTHON" -m pip download --only-binary=:all: --dest "$BUNDLE/wheels" "${wheels[@]}" &&
    ! find "$BUNDLE/wheels" -name '*.whl' ! -name '*-none-any.whl' | grep .
}

# pinned <project>: the hash that cmake/ThirdParty.cmake has for it, then its addresses.
pinned() {
  sed -n "/FetchContent_Declare($1/,/)/s/.*URL_HASH SHA256=//p" cmake/ThirdParty.cmake
  sed -n "s/.*\"\(https\{0,1\}:.*\/${1/nlohmann_/nlohmann\\/}\/.*\)\".*/\1/p" cmake/ThirdParty.cmake
}

# fetch_archive <project>: unpacks what CMake would fetch into $BUNDLE/<project>.
fetch_archive() {
  local archive="build/$1.archive" pin address
  mapfile -t pin < <(pinned "$1")
  for address in "${pin[@]:1}"; do
    "$VENV_PYTHON" -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' \
      "$address" "$archive" && break
  done
  echo "${pin[0]}  $archive" | sha256sum --check &&
    tar -xf "$archive" --strip-components 1 -C "$BUNDLE/$1"
}

# The sources that Debian installs with libgtest-dev, otherwise the archive that CMake would fetch.
fetch_googletest() {
  rm -rf "$BUNDLE/googletest"
  mkdir -p "$BUNDLE/googletest"
  if [ -f /usr/src/googletest/CMakeLists.txt ]; then
    cp -r /usr/src/googletest/. "$BUNDLE/googletest"
    return
  fi
  fetch_archive googletest
}

# The library of Debian's libhwy-dev is shared and serves one machine; the sources serve every one.
fetch_highway() {
  rm -rf "$BUNDLE/highway"
  mkdir -p "$BUNDLE/highway"
  fetch_archive highway
}

# The headers that Debian installs with nlohmann-json3-dev, otherwise that archive.
fetch_json() {
  rm -rf "$BUNDLE/nlohmann_json"
  mkdir -p "$BUNDLE/nlohmann_json/include"
  if [ ! -f /usr/include/nlohmann/json.hpp ]; then
    fetch_archive nlohmann_json
    return
  fi
  cp -r /usr/include/nlohmann "$BUNDLE/nlohmann_json/include" &&
    cat >"$BUNDLE/nlohmann_json/CMakeLists.txt" <<'CMAKE'
add_library(nlohmann_json INTERFACE)
add_library(nlohmann_json::nlohmann_json ALIAS nlohmann_json)
target_include_directories(nlohmann_json SYSTEM INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/include")
CMAKE
}

STAMPS=$BUNDLE
mkdir -p "$BUNDLE"
once wheels.made "${wheels[*]}" "wheels: ${wheels[*]}" fetch_wheels
once googletest.made "$(pinned googletest)" "sources of GoogleTest" fetch_googletest
once highway.made "$(pinned highway)" "sources of Google Highway" fetch_highway
once nlohmann_json.made "$(pinned nlohmann_json)" "headers of nlohmann-json" fetch_json

size=$(du -sm "$BUNDLE" | cut -f 1)
if [ "$size" -gt "$MAX_MIB" ]; then
  echo "$BUNDLE has $size MiB, $MAX_MIB are allowed" >&2
  exit 1
fi
echo "$BUNDLE: $size MiB"
