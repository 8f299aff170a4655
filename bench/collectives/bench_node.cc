// Collectives at the level of C++ on one machine, beside what its memory allows; see kUsage.

#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "bench/collectives/group_of_processes.h"
#include "bench/collectives/options.h"
#include "bench/collectives/report.h"

namespace tidegate::bench {
namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "tidegate_bench_node: %s\n", message.c_str());
  return 2;
}

nlohmann::json OptionsJson(const Options& options) {
  return {{"passes", options.passes},
          {"rounds", options.rounds},
          {"warmups", options.warmups},
          {"async", options.async},
          {"load", options.load}};
}

void Append(const nlohmann::json& more, nlohmann::json& list) {
  for (const nlohmann::json& one : more) list.push_back(one);
}

/// Puts a cell of one pass to the same of earlier ones.
void AddRounds(nlohmann::json cell, nlohmann::json& cells) {
  for (nlohmann::json& known : cells) {
    const auto differs = [&](const char* key) {
      return known.value(key, nlohmann::json()) != cell.value(key, nlohmann::json());
    };
    if (differs("collective") || differs("ranks") || differs("asked_bytes")) continue;
    known["wrong"] = known["wrong"].get<std::int64_t>() + cell["wrong"].get<std::int64_t>();
    if (cell.contains("core_percent")) return Append(cell["core_percent"], known["core_percent"]);
    for (const auto& [variant, loops] : cell["loops_us"].items())
      Append(loops, known["loops_us"][variant]);
    for (const auto& [variant, percentiles] : cell["each_us"].items())
      for (const auto& [name, values] : percentiles.items())
        Append(values, known["each_us"][variant][name]);
    return;
  }
  cells.push_back(std::move(cell));
}

int Run(const Options& options) {
  const nlohmann::json host = HostFingerprint();
  std::string line = "Host:";
  for (const auto& [name, value] : host.items())
    line += " " + name + " " + (value.is_string() ? value.get<std::string>() : value.dump()) + ";";
  line.back() = '.';
  std::printf("%s\n", line.c_str());
  std::printf("%d rounds, a loop of every variant in each; median (least..greatest).%s\n\n",
              options.passes * options.rounds, options.load ? " A busy loop on every core." : "");
  std::fflush(stdout);

  const Disturbance disturbance;
  nlohmann::json cells = nlohmann::json::array();
  std::int64_t wrong = 0;
  {
    const std::unique_ptr<BusyCores> load = options.load ? std::make_unique<BusyCores>() : nullptr;
    for (int pass = 0; pass < options.passes; ++pass) {
      for (const int ranks : options.ranks) {
        const Status status = RunGroup(options, ranks, [&](nlohmann::json cell) {
          wrong += cell.at("wrong").get<std::int64_t>();
          AddRounds(std::move(cell), cells);
        });
        if (!status.ok()) return Fail(status.message());
      }
    }
  }
  const nlohmann::json disturbed = disturbance.Percent();
  std::fputs(MarkdownTables(cells).c_str(), stdout);
  std::printf(
      "Meanwhile other processes used %.1f%% of the processors, and the host took %.1f%%.\n",
      disturbed.at("others_percent").get<double>(), disturbed.at("stolen_percent").get<double>());
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::json{{"version", 1},
                           {"host", host},
                           {"disturbance", disturbed},
                           {"options", OptionsJson(options)},
                           {"cells", cells}}
                .dump(1)
         << "\n";
    if (!file.flush()) return Fail(options.json + ": cannot be written");
  }
  if (wrong == 0) return 0;
  std::fprintf(stderr, "tidegate_bench_node: %lld elements are wrong\n",
               static_cast<long long>(wrong));
  return 1;
}

}  // namespace
}  // namespace tidegate::bench

int main(int count, char** arguments) {
  try {
    const std::span<const char* const> given(arguments + 1, static_cast<std::size_t>(count - 1));
    for (const std::string_view argument : given) {
      if (argument != "--help" && argument != "-h") continue;
      std::fputs(tidegate::bench::kUsage, stdout);
      return 0;
    }
    const tidegate::Result<tidegate::bench::Options> options = tidegate::bench::ParseOptions(given);
    if (!options.ok()) return tidegate::bench::Fail(options.status().message());
    return tidegate::bench::Run(options.value());
  } catch (const std::exception& failure) {
    return tidegate::bench::Fail(failure.what());
  }
}
