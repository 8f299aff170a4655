#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace tidegate {

/// Where the folder `cache` keeps what `kind` says of `key`, such as "calibration" of a machine.
std::string CacheFile(const std::string& cache, std::string_view kind, const std::string& key);

/// Writes a file as a whole or not at all, for other processes may read it meanwhile; makes its
/// folder. kInvalidArgument with path and reason if that cannot be done.
Status ReplaceFile(const std::string& path, const std::string& text);

}  // namespace tidegate
