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

# The sources that Debian installs with libgtest-dev, otherwise the archive that CMake would fetch.
fetch_googletest() {
  local archive=build/googletest.tar.gz url hash
  rm -rf "$BUNDLE/googletest"
  mkdir -p "$BUNDLE/googletest"
  if [ -f /usr/src/googletest/CMakeLists.txt ]; then
    cp -r /usr/src/googletest/. "$BUNDLE/googletest"
    return
  fi
  url=$(sed -n 's/.*"\(https:.*\.tar\.gz\)".*/\1/p' cmake/ThirdParty.cmake)
  hash=$(sed -n 's/.*URL_HASH SHA256=//p' cmake/ThirdParty.cmake)
  "$VENV_PYTHON" -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' \
    "$url" "$archive" &&
    echo "$hash  $archive" | sha256sum --check &&
    tar -xzf "$archive" --strip-components 1 -C "$BUNDLE/googletest"
}

STAMPS=$BUNDLE
mkdir -p "$BUNDLE"
once wheels.made "${wheels[*]}" "wheels: ${wheels[*]}" fetch_wheels
once googletest.made "$(sed -n 's/.*URL_HASH SHA256=//p' cmake/ThirdParty.cmake)" \
  "sources of GoogleTest" fetch_googletest

size=$(du -sm "$BUNDLE" | cut -f 1)
if [ "$size" -gt "$MAX_MIB" ]; then
  echo "$BUNDLE has $size MiB, $MAX_MIB are allowed" >&2
  exit 1
fi
echo "$BUNDLE: $size MiB"
