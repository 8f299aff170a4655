# Everything in C++ that others wrote, torch excepted (FindTorchPaths.cmake): found on the system
# first, fetched at a pinned version otherwise. Point the URL at a mirror or a local archive, or set
# FETCHCONTENT_SOURCE_DIR_GOOGLETEST, ..._NLOHMANN_JSON or ..._HIGHWAY, where the address is out of reach.

set(TIDEGATE_GOOGLETEST_URL
    "https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz"
    CACHE STRING "Archive of GoogleTest 1.14.0, used where the system has none")

set(TIDEGATE_NLOHMANN_JSON_URL
    "https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz"
    CACHE STRING "Archive of nlohmann-json 3.11.3, used where the system has none")

# The same archive twice: Debian's mirrors are within reach of machines that reach little else.
set(TIDEGATE_HIGHWAY_URL
    "https://github.com/google/highway/archive/refs/tags/1.0.3.tar.gz"
    "http://deb.debian.org/debian/pool/main/h/highway/highway_1.0.3.orig.tar.gz"
    CACHE STRING "Archives of Google Highway 1.0.3, used where the system has none")

include(FetchContent)

find_package(nlohmann_json 3.10 QUIET)
if(TARGET nlohmann_json::nlohmann_json)
  set(TIDEGATE_NLOHMANN_JSON_ORIGIN "system ${nlohmann_json_VERSION}")
else()
  set(JSON_BuildTests OFF CACHE INTERNAL "")
  set(JSON_Install OFF CACHE INTERNAL "")
  # A system header to us: its warnings are not ours.
  set(JSON_SystemInclude ON CACHE INTERNAL "")
  FetchContent_Declare(nlohmann_json
    URL "${TIDEGATE_NLOHMANN_JSON_URL}"
    URL_HASH SHA256=d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d
    DOWNLOAD_EXTRACT_TIMESTAMP OFF)
  FetchContent_MakeAvailable(nlohmann_json)
  set(TIDEGATE_NLOHMANN_JSON_ORIGIN "fetched 3.11.3")
endif()

# The kernels: vectors and the choice of the instruction set at run time.
find_package(hwy 1.0.3 QUIET)
if(TARGET hwy::hwy)
  set(TIDEGATE_HIGHWAY_ORIGIN "system ${hwy_VERSION}")
else()
  message(STATUS "No Google Highway 1.0.3 here (sudo apt-get install libhwy-dev): fetching it")
  set(HWY_ENABLE_CONTRIB OFF CACHE INTERNAL "")
  set(HWY_ENABLE_EXAMPLES OFF CACHE INTERNAL "")
  set(HWY_ENABLE_INSTALL OFF CACHE INTERNAL "")
  set(HWY_ENABLE_TESTS OFF CACHE INTERNAL "")
  FetchContent_Declare(highway
    URL ${TIDEGATE_HIGHWAY_URL}
    URL_HASH SHA256=566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e
    DOWNLOAD_EXTRACT_TIMESTAMP OFF)
  FetchContent_MakeAvailable(highway)
  # A system header to us: its warnings are not ours.
  get_target_property(highway_includes hwy INTERFACE_INCLUDE_DIRECTORIES)
  set_target_properties(hwy PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${highway_includes}")
  add_library(hwy::hwy ALIAS hwy)
  set(TIDEGATE_HIGHWAY_ORIGIN "fetched 1.0.3")
endif()

set(TIDEGATE_GTEST_ORIGIN "not needed")
if(TIDEGATE_BUILD_TESTS)
  find_package(GTest 1.11 QUIET)
  if(TARGET GTest::gmock_main)
    set(TIDEGATE_GTEST_ORIGIN "system ${GTest_VERSION}")
  else()
    set(INSTALL_GTEST OFF)
    FetchContent_Declare(googletest
      URL "${TIDEGATE_GOOGLETEST_URL}"
      URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
      DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    FetchContent_MakeAvailable(googletest)
    set(TIDEGATE_GTEST_ORIGIN "fetched 1.14.0")
  endif()
endif()
