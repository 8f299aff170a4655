#pragma once

#include <source_location>
#include <stdexcept>

namespace tidegate {

/// A broken invariant of tidegate itself. Never thrown for a caller's or a peer's mistake.
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws InvariantError naming `expression`, file, line and function.
[[noreturn]] void ThrowInvariantError(const char* expression,
                                      std::source_location where = std::source_location::current());

}  // namespace tidegate

#define TIDEGATE_CHECK(expression)                  \
  do {                                              \
    if (!(expression)) [[unlikely]]                 \
      ::tidegate::ThrowInvariantError(#expression); \
  } while (false)
