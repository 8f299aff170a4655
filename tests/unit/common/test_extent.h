// How much of itself a test runs: all of it when asked, less of it in builds that are slow.
#pragma once

#include <cstdlib>
#include <string_view>

namespace tidegate::testing {

/// Whether matrices are to be run in full: TIDEGATE_TEST_ALL is set, and not to 0.
inline bool TestsAll() {
  const char* const all = std::getenv("TIDEGATE_TEST_ALL");
  return all != nullptr && !std::string_view(all).empty() && std::string_view(all) != "0";
}

/// Whether this build is ten times slower than a release build, so that its times are of no
/// interest and what takes seconds there is left out.
inline constexpr bool kIsSlowBuild =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    true;
#else
    false;
#endif

}  // namespace tidegate::testing
