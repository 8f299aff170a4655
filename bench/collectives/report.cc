#include "bench/collectives/report.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "common/machine/machine.h"
#include "common/median.h"

namespace tidegate::bench {
namespace {

std::string FirstLineOf(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string Time(double microseconds) {
  return Format(microseconds < 100 ? "%.2f" : "%.0f", microseconds);
}

std::string Size(std::uint64_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

std::vector<double> Samples(const nlohmann::json& cell, const char* variant) {
  const auto& loops = cell.at("loops_us");
  return loops.contains(variant) ? loops.at(variant).get<std::vector<double>>()
                                 : std::vector<double>();
}

std::string MedianTime(const std::vector<double>& samples) {
  return samples.empty() ? "-" : Time(Median(samples));
}

/// Median over the rounds of `above` / `below` within a round, and the least and greatest.
std::string Ratio(const std::vector<double>& above, const std::vector<double>& below, double factor,
                  const char* format) {
  if (above.empty() || below.empty()) return "-";
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(above.size(), below.size()); ++i)
    ratios.push_back(factor * above[i] / below[i]);
  const auto [least, greatest] = std::ranges::minmax(ratios);
  const auto text = [format](double value) {
    char number[32];
    std::snprintf(number, sizeof(number), format, value);
    return std::string(number);
  };
  return text(Median(ratios)) + " (" + text(least) + ".." + text(greatest) + ")";
}

std::string Cell(const nlohmann::json& cell) {
  return "| " + cell.at("collective").get<std::string>() + " | " +
         std::to_string(cell.at("ranks").get<int>()) + " | ";
}

std::string BandwidthTable(const nlohmann::json& cells) {
  std::string table =
      "| collective | ranks | tensors | size | us | in place us | bare us | plain us | streaming "
      "us "
      "| of bare % | of plain % | of streaming % | in place of streaming % | wrong |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  std::size_t rows = 0;
  for (const nlohmann::json& cell : cells) {
    if (!cell.contains("loops_us") || cell.at("bytes") == 0) continue;
    const std::vector<double> bare = Samples(cell, "bare");
    const std::vector<double> plain = Samples(cell, "plain");
    const std::vector<double> streaming = Samples(cell, "streaming");
    for (const std::string variant : {"tidegate", "resident"}) {
      const std::vector<double> own = Samples(cell, variant.c_str());
      const std::vector<double> in_place = Samples(cell, (variant + "_in_place").c_str());
      if (own.empty()) continue;
      ++rows;
      table += Cell(cell) + (variant == "tidegate" ? "ordinary" : "resident") + std::string(" | ") +
               Size(cell.at("asked_bytes").get<std::uint64_t>()) + " | " + MedianTime(own) + " | " +
               MedianTime(in_place) + " | " + MedianTime(bare) + " | " + MedianTime(plain) + " | " +
               MedianTime(streaming) + " | " + Ratio(bare, own, 100, "%.0f") + " | " +
               Ratio(plain, own, 100, "%.0f") + " | " + Ratio(streaming, own, 100, "%.0f") + " | " +
               Ratio(streaming, in_place, 100, "%.0f") + " | " +
               std::to_string(cell.at("wrong").get<std::int64_t>()) + " |\n";
    }
  }
  return rows == 0 ? "" : table;
}

std::string LatencyTable(const nlohmann::json& cells) {
  std::string table =
      "| collective | ranks | size | p50 us | p99 us | bare barrier p50 us | p99 us | bare "
      "exchange "
      "p50 us | p50 / bare barrier | p50 / bare exchange | wrong |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  std::size_t rows = 0;
  for (const nlohmann::json& cell : cells) {
    if (!cell.contains("each_us") || cell.at("each_us").empty()) continue;
    ++rows;
    const nlohmann::json& each = cell.at("each_us");
    const auto samples = [&each](const char* variant, const char* which) {
      return each.contains(variant) ? each.at(variant).at(which).get<std::vector<double>>()
                                    : std::vector<double>();
    };
    const std::vector<double> own = samples("tidegate", "p50");
    const std::vector<double> flags = samples("flags", "p50");
    const std::vector<double> bare = samples("bare", "p50");
    table += Cell(cell) + Size(cell.at("asked_bytes").get<std::uint64_t>()) + " | " +
             MedianTime(own) + " | " + MedianTime(samples("tidegate", "p99")) + " | " +
             MedianTime(flags) + " | " + MedianTime(samples("flags", "p99")) + " | " +
             MedianTime(bare) + " | " + Ratio(own, flags, 1, "%.2f") + " | " +
             Ratio(own, bare, 1, "%.2f") + " | " +
             std::to_string(cell.at("wrong").get<std::int64_t>()) + " |\n";
  }
  return rows == 0 ? "" : table;
}

std::string IdleTable(const nlohmann::json& cells) {
  std::string rows;
  for (const nlohmann::json& cell : cells) {
    if (!cell.contains("core_percent")) continue;
    const auto percent = cell.at("core_percent").get<std::vector<double>>();
    rows += Format("| %d | %.4f | %.4f |\n", cell.at("ranks").get<int>(), Median(percent),
                   *std::ranges::max_element(percent));
  }
  return rows.empty()
             ? ""
             : "| ranks | % of a core, all ranks together | most |\n|---|---|---|\n" + rows;
}

}  // namespace

nlohmann::json HostFingerprint() {
  utsname system{};
  uname(&system);
  double load[3] = {0, 0, 0};
  getloadavg(load, 3);
  std::string governor = FirstLineOf("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor.empty()) governor = "not visible";
  return {{"cpu", CpuModel()},
          {"cores", UsableCpus()},
          {"kernel", std::string(system.sysname) + " " + system.release},
          {"governor", governor},
          {"huge_pages", FirstLineOf("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"load", Format("%.2f %.2f %.2f at the start", load[0], load[1], load[2])}};
}

Disturbance::Disturbance() : before_(Now()) {}

Disturbance::Times Disturbance::Now() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  // user nice system idle iowait irq softirq steal
  double ticks[8] = {};
  stat >> cpu;
  for (double& one : ticks) stat >> one;
  Times times;
  for (const double one : ticks) times.total += one;
  times.idle = ticks[3] + ticks[4];
  times.stolen = ticks[7];
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  for (const auto whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(whose, &used);
    times.own += (seconds(used.ru_utime) + seconds(used.ru_stime)) *
                 static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return times;
}

nlohmann::json Disturbance::Percent() const {
  const Times after = Now();
  const double total = std::max(after.total - before_.total, 1.0);
  const double stolen = after.stolen - before_.stolen;
  const double others = total - (after.idle - before_.idle) - stolen - (after.own - before_.own);
  return {{"others_percent", 100 * std::max(others, 0.0) / total},
          {"stolen_percent", 100 * stolen / total}};
}

std::string MarkdownTables(const nlohmann::json& cells) {
  std::string text;
  for (const std::string& table : {BandwidthTable(cells), LatencyTable(cells), IdleTable(cells)})
    if (!table.empty()) text += table + "\n";
  return text;
}

}  // namespace tidegate::bench
