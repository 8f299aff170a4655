# Everything in C++ that others wrote, torch excepted (FindTorchPaths.cmake): found on the system
# first, fetched at a pinned version otherwise. Point the URL at a mirror or a local archive, or set
# FETCHCONTENT_SOURCE_DIR_GOOGLETEST, where the address is out of reach.

set(TIDEGATE_GOOGLETEST_URL
    "https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz"
    CACHE STRING "Archive of GoogleTest 1.14.0, used where the system has none")

set(TIDEGATE_GTEST_ORIGIN "not needed")
if(TIDEGATE_BUILD_TESTS)
  find_package(GTest 1.11 QUIET)
  if(TARGET GTest::gmock_main)
    set(TIDEGATE_GTEST_ORIGIN "system ${GTest_VERSION}")
  else()
    include(FetchContent)
    set(INSTALL_GTEST OFF)
    FetchContent_Declare(googletest
      URL "${TIDEGATE_GOOGLETEST_URL}"
      URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
      DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    FetchContent_MakeAvailable(googletest)
    set(TIDEGATE_GTEST_ORIGIN "fetched 1.14.0")
  endif()
endif()
