#include "collectives/calibration/calibration.h"

#include <cstdint>
#include <filesystem>

#include "collectives/calibration/cache_file.h"
#include "collectives/calibration/data_paths_json.h"
#include "collectives/calibration/timing.h"
#include "common/json/json_view.h"
#include "common/json/parse_json.h"
#include "common/log.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

constexpr std::int64_t kFormat = 5;
constexpr std::size_t kMostFileBytes = 1 << 16;

}  // namespace

std::string MachineKey(int usable_cpus, const std::string& root) {
  return HostName() + ", " + CpuModel(root) + ", " + std::to_string(usable_cpus) +
         " processors, tidegate " TIDEGATE_VERSION;
}

std::string FormatCalibration(const std::string& key, const Calibration& calibration) {
  const auto& [rates, paths] = calibration;
  const nlohmann::ordered_json text = {
      {"tidegate_calibration", kFormat},    {"machine", key},
      {"copy_Bps", rates.copy_Bps},         {"memory_Bps", rates.memory_Bps},
      {"signal_s", rates.signal_s},         {"chunk_bytes", paths.chunk_bytes},
      {"stream_bytes", paths.stream_bytes}, {"single_copy_bytes", paths.single_copy_bytes}};
  return text.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<Calibration> ParseCalibration(std::string_view text, const std::string& key) {
  const Result<nlohmann::json> json = ParseJson(text);
  if (!json.ok()) return json.status();
  const JsonView root(json.value());
  TIDEGATE_RETURN_IF_ERROR(
      root.CheckObject({"tidegate_calibration", "machine", "copy_Bps", "memory_Bps", "signal_s",
                        "chunk_bytes", "stream_bytes", "single_copy_bytes"}));
  std::int64_t format = 0;
  std::string machine;
  Calibration calibration;
  auto& [rates, paths] = calibration;
  TIDEGATE_RETURN_IF_ERROR(root.Read("tidegate_calibration", format, kFormat, kFormat));
  TIDEGATE_RETURN_IF_ERROR(root.Read("machine", machine));
  TIDEGATE_RETURN_IF_ERROR(root.Read("copy_Bps", rates.copy_Bps));
  TIDEGATE_RETURN_IF_ERROR(root.Read("memory_Bps", rates.memory_Bps));
  TIDEGATE_RETURN_IF_ERROR(root.Read("signal_s", rates.signal_s));
  TIDEGATE_RETURN_IF_ERROR(ReadDataPaths(root, &paths));
  if (machine != key) return root.at("machine").Bad("of another machine than \"" + key + "\"");
  for (const char* const rate : {"copy_Bps", "memory_Bps"}) {
    double value = 0;
    TIDEGATE_RETURN_IF_ERROR(root.Read(rate, value));
    if (!(value >= 1e6 && value <= 1e15)) return root.at(rate).Bad("is outside 1e6 to 1e15 byte/s");
  }
  if (!(rates.signal_s > 0 && rates.signal_s <= kMostSignalSeconds))
    return root.at("signal_s").Bad("is outside 0 to 50 us");
  return calibration;
}

Calibration Calibrated(const std::string& cache, const std::string& key, Calibration (*measure)()) {
  if (cache.empty()) return measure();
  const std::string path = CacheFile(cache, "calibration", key);
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    const Result<std::string> text = ReadTextFile(path, kMostFileBytes);
    const Result<Calibration> kept =
        text.ok() ? ParseCalibration(text.value(), key) : Result<Calibration>(text.status());
    if (kept.ok()) return kept.value();
    Log(LogLevel::kWarn,
        "calibration " + path + " is not used and made anew: " + kept.status().message());
  }
  const Calibration calibration = measure();
  if (const Status status = ReplaceCacheFile(path, FormatCalibration(key, calibration));
      !status.ok())
    Log(LogLevel::kInfo, "the calibration cannot be kept, every process makes its own: " +
                             status.message() + "; set TIDEGATE_CACHE_DIR");
  return calibration;
}

}  // namespace tidegate
