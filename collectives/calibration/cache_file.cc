#include "collectives/calibration/cache_file.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace tidegate {
namespace {

/// FNV-1a: file names need no more.
std::uint64_t HashOf(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::string CacheFile(const std::string& cache, std::string_view kind, const std::string& key) {
  char hash[24];
  std::snprintf(hash, sizeof hash, "-%016llx.json", static_cast<unsigned long long>(HashOf(key)));
  return (std::filesystem::path(cache) / (std::string(kind) + hash)).string();
}

Status ReplaceFile(const std::string& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string draft = path + "." + std::to_string(getpid());
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) std::filesystem::rename(draft, path, error);
  if (file && !error) return Status();
  const std::string why = file ? error.message() : "it cannot be written";
  std::filesystem::remove(draft, error);
  return Status(StatusCode::kInvalidArgument, path + ": " + why);
}

}  // namespace tidegate
