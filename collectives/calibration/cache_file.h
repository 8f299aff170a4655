#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace tidegate {

/// Where the folder `cache` keeps what `kind` says of `key`, such as "calibration" of a machine.
std::string CacheFile(const std::string& cache, std::string_view kind, const std::string& key);

/// ReplaceTextFile of such a file, which makes its folder; errors start with the path.
Status ReplaceCacheFile(const std::string& path, const std::string& text);

}  // namespace tidegate
