#include "collectives/calibration/cache_file.h"

#include <cstdio>
#include <filesystem>

#include "common/hash.h"
#include "common/json/parse_json.h"

namespace tidegate {

std::string CacheFile(const std::string& cache, std::string_view kind, const std::string& key) {
  char hash[24];
  std::snprintf(hash, sizeof hash, "-%016llx.json", static_cast<unsigned long long>(HashText(key)));
  return (std::filesystem::path(cache) / (std::string(kind) + hash)).string();
}

Status ReplaceCacheFile(const std::string& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const Status written = ReplaceTextFile(path, text);
  return written.ok() ? written : Status(written.code(), path + ": " + written.message());
}

}  // namespace tidegate
