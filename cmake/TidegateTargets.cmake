# The kinds of target in this project. A name is a folder path with / replaced by _, and the DEPS of
# a target are the folders that it may include: tests/python/test_includes.py compares the two.

# Warnings are a private matter of our own sources, never of a header of somebody else.
function(tidegate_compile_strictly target)
  # gcc 12 sees overlapping copies in operator+ of strings (GCC bug 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(TIDEGATE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

function(tidegate_link target visibility)
  list(TRANSFORM ARGN PREPEND tidegate_)
  target_link_libraries(${target} ${visibility} ${ARGN})
endfunction()

# tidegate_add_library(<name> SOURCES <file>... [DEPS <name>...])
# The static library tidegate_<name> of one folder.
function(tidegate_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  set(target tidegate_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PUBLIC Threads::Threads)
  tidegate_link(${target} PUBLIC ${arg_DEPS})
  tidegate_compile_strictly(${target})
endfunction()

# tidegate_add_test(<name> SOURCES <file>... [DEPS <name>...] [TIMEOUT <seconds>] [LABELS <label>...])
# A GoogleTest executable that ctest runs as one test: a process a file keeps the sanitizer runs
# quick, and the last RUN line of its output names a test that hung. Labelled "unit" and with the
# folder that it mirrors, so that a slice is chosen with ctest -L.
function(tidegate_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;DEPS;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)  # A hang; a sanitizer on a busy machine takes minutes.
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${name} PRIVATE TIDEGATE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE GTest::gmock_main)
  tidegate_link(${name} PRIVATE ${arg_DEPS})
  tidegate_compile_strictly(${name})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/tests/unit"
             OUTPUT_VARIABLE folder)
  string(REPLACE "/" "_" folder "${folder}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "unit;${folder};${arg_LABELS}"
                                          TIMEOUT ${arg_TIMEOUT})
endfunction()

# tidegate_add_shim(SOURCES <file>... [DEPS <name>...])
# The Python module _c10d_pt<major><minor> of the torch that was found. TIDEGATE_SHIM_NAME is its
# name for PYBIND11_MODULE. No RPATH to torch: Python has loaded torch before it loads the module.
function(tidegate_add_shim)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;DEPS")
  set(target ${TIDEGATE_SHIM_NAME})
  Python_add_library(${target} MODULE WITH_SOABI ${arg_SOURCES})
  target_compile_definitions(${target} PRIVATE TIDEGATE_SHIM_NAME=${TIDEGATE_SHIM_NAME})
  target_link_libraries(${target} PRIVATE tidegate_torch)
  tidegate_link(${target} PRIVATE ${arg_DEPS})
  # Symbols of the static archives stay inside: two shims, or another backend, may share a process.
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
  tidegate_compile_strictly(${target})
  install(TARGETS ${target} LIBRARY DESTINATION tidegate COMPONENT python)
endfunction()
