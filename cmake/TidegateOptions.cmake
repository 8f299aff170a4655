# How every translation unit is compiled.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Results are promised bit for bit on every machine: a fused multiply-add rounds once where the
# reference rounds twice, so contraction is off everywhere and kernels ask for an FMA by name.
add_compile_options(-ffp-contract=off)

if(TIDEGATE_SANITIZE STREQUAL "address")
  set(sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(TIDEGATE_SANITIZE STREQUAL "thread")
  set(sanitizer_flags -fsanitize=thread)
elseif(NOT TIDEGATE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "TIDEGATE_SANITIZE is '${TIDEGATE_SANITIZE}': use address or thread")
endif()
if(DEFINED sanitizer_flags)
  add_compile_options(${sanitizer_flags} -fno-omit-frame-pointer)
  add_link_options(${sanitizer_flags})
endif()

if(TIDEGATE_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TIDEGATE_BUILD_FUZZERS needs clang: scripts/fuzz.sh finds or installs one")
  endif()
  # Coverage everywhere; the targets themselves link libFuzzer.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TIDEGATE_CCACHE ccache)
  if(TIDEGATE_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TIDEGATE_CCACHE}")
  endif()
endif()

find_package(Threads REQUIRED)
