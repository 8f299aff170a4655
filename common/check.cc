#include "common/check.h"

#include <string>

namespace tidegate {

void ThrowInvariantError(const char* expression, std::source_location where) {
  throw InvariantError(std::string("tidegate invariant broken: ") + expression + " at " +
                       where.file_name() + ":" + std::to_string(where.line()) + " in " +
                       where.function_name());
}

}  // namespace tidegate
