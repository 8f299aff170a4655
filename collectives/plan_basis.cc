#include "collectives/plan_basis.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "collectives/calibration/cache_file.h"
#include "collectives/calibration/calibration.h"
#include "collectives/calibration/data_paths_json.h"
#include "collectives/calibration/measure.h"
#include "collectives/calibration/measure_paths.h"
#include "collectives/topology/discovery.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/topology_json.h"
#include "collectives/transport/transport.h"
#include "common/json/json_view.h"
#include "common/json/parse_json.h"
#include "common/log.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

constexpr std::int64_t kFormat = 1;

/// Looked at once: hwloc takes milliseconds.
const Result<MachineFacts>& ThisMachine() {
  static const Result<MachineFacts> facts = ReadMachine(SystemSources());
  return facts;
}

std::string ThisMachinesName() { return MachineKey(UsableCpus()); }

Calibration MeasureThisMachine() {
  return {MeasureMachine(UsableCpus(), NumaNodes()), MeasureDataPaths(UsableCpus())};
}

const Calibration& CalibrationOfThisMachine(const std::string& cache) {
  static const Calibration calibration = Calibrated(cache, ThisMachinesName(), MeasureThisMachine);
  return calibration;
}

Result<Topology> Discover(int ranks, const MachineRates& rates, int usable_cpus) {
  const std::vector<RankSite> sites(static_cast<std::size_t>(ranks));
  const Result<MachineFacts>& facts = ThisMachine();
  Result<Topology> described =
      facts.ok() ? DescribeMachine(facts.value(), "node0", sites, usable_cpus, rates)
                 : Result<Topology>(facts.status());
  if (described.ok()) return described;
  Log(LogLevel::kInfo,
      "this machine does not show what it is made of, and is planned for as a "
      "plain one: " +
          described.status().message());
  const std::vector<int> one_node = {ranks};
  return MakeFakeCluster(
      one_node, {.intra_latency_s = rates.signal_s, .intra_bandwidth_Bps = rates.copy_Bps});
}

constexpr std::size_t kMostFileBytes = std::size_t{4} << 20;

std::string MeasuredFile(const Config& config, int ranks) {
  return CacheFile(config.cache_dir, "measured-" + std::to_string(ranks), ThisMachinesName());
}

/// Empty where there is no table.
MeasuredTable LoadMeasured(const Config& config, int ranks) {
  const std::string path = MeasuredFile(config, ranks);
  std::error_code error;
  if (config.cache_dir.empty() || !std::filesystem::exists(path, error)) return {};
  const Result<std::string> text = ReadTextFile(path, kMostFileBytes);
  Result<MeasuredTable> table = text.ok()
                                    ? ParseMeasuredFile(text.value(), ThisMachinesName(), ranks)
                                    : Result<MeasuredTable>(text.status());
  if (table.ok()) return std::move(table).value();
  Log(LogLevel::kWarn, "the measured table " + path + " is not used: " + table.status().message() +
                           "; remove it, or run tidegate measure again");
  return {};
}

/// Whom a group consists of, and what the machine is said to be.
struct Description {
  int ranks = 0;
  std::span<const int> members = {};
  int ranks_of_job = 0;
  MachineRates rates = {};
  int usable_cpus = 0;
};

Result<MachineModel> Describe(const TopologySettings& settings, const Description& group) {
  // A group needs no more ranks described than it has, unless a file speaks of all.
  const bool by_job = !group.members.empty() && settings.has_file();
  int described = group.ranks;
  if (by_job)
    described = std::max(group.ranks_of_job, *std::ranges::max_element(group.members) + 1);
  const Result<Topology> discovered = Discover(described, group.rates, group.usable_cpus);
  if (!discovered.ok()) return discovered.status();
  Result<Topology> topology =
      settings.Apply(discovered.value(), by_job ? group.members : std::span<const int>());
  if (!topology.ok()) return topology.status();
  const double share = std::min(1.0, static_cast<double>(group.usable_cpus) / group.ranks);
  // A copy reads as many bytes as it writes.
  return MachineModel{std::move(topology).value(),
                      {.core_Bps = 2 * group.rates.copy_Bps * share,
                       .memory_Bps = group.rates.memory_Bps * NumaNodes()}};
}

nlohmann::json ToJson(const MachineModel& model) {
  nlohmann::json json;
  json["topology"] = nlohmann::json::parse(FormatTopology(model.topology));
  // What JSON cannot say is left out.
  if (std::isfinite(model.rates.core_Bps)) json["core_Bps"] = model.rates.core_Bps;
  if (std::isfinite(model.rates.memory_Bps)) json["memory_Bps"] = model.rates.memory_Bps;
  return json;
}

Result<MachineModel> ReadModel(const JsonView& view) {
  TIDEGATE_RETURN_IF_ERROR(view.CheckObject({"topology", "core_Bps", "memory_Bps"}));
  LocalRates rates;
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("core_Bps", rates.core_Bps));
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("memory_Bps", rates.memory_Bps));
  if (!(rates.core_Bps > 0) || !(rates.memory_Bps > 0)) return view.Bad("has a rate below 0");
  if (!view.has("topology")) return view.Bad("has no topology");
  Result<Topology> topology = ParseTopology(view.at("topology").json().dump());
  if (!topology.ok()) return topology.status();
  return MachineModel{std::move(topology).value(), rates};
}

}  // namespace

Result<PlanBasis> MakePlanBasis(const Config& config, int ranks, std::span<const int> members,
                                int ranks_of_job) {
  const Result<TopologySettings> settings = TopologySettings::Read(config);
  TIDEGATE_RETURN_IF_ERROR(settings.status());
  Description group{.ranks = ranks, .members = members, .ranks_of_job = ranks_of_job};
  // Which processors this rank may use is no matter of the machine: another rank might have come
  // first, and the order of reduction must be the same.
  group.usable_cpus = std::max(ranks, UsableCpus());
  Result<MachineModel> declared = Describe(settings.value(), group);
  if (!declared.ok()) return declared.status();
  PlanBasis basis{.declared = std::move(declared).value()};
  const auto set_paths = [&](const DataPaths& paths) {
    basis.paths = {.chunk_bytes = config.chunk_bytes.value_or(paths.chunk_bytes),
                   .stream_bytes = config.stream_bytes.value_or(paths.stream_bytes),
                   .single_copy_bytes = config.single_copy_bytes.value_or(paths.single_copy_bytes),
                   .crowded_single_copy_bytes =
                       config.single_copy_bytes.value_or(paths.crowded_single_copy_bytes)};
  };
  set_paths({});
  // One rank of the job dumps what prices come from.
  const auto dump = [&](const MachineModel& model) {
    return members.empty() ? settings.value().Dump(model.topology) : Status();
  };
  if (!config.calibrate) {
    TIDEGATE_RETURN_IF_ERROR(dump(basis.declared));
    return basis;
  }
  const Calibration& calibration = CalibrationOfThisMachine(config.cache_dir);
  set_paths(calibration.paths);
  group.rates = calibration.rates;
  group.usable_cpus = UsableCpus();
  Result<MachineModel> calibrated = Describe(settings.value(), group);
  if (!calibrated.ok()) return calibrated.status();
  TIDEGATE_RETURN_IF_ERROR(dump(calibrated.value()));
  basis.calibrated = std::move(calibrated).value();
  // What a file describes is not what was measured.
  if (config.topo_file.empty()) basis.measured = LoadMeasured(config, ranks);
  return basis;
}

Result<Planner> MakePlanner(const PlanBasis& basis, AlgorithmChoices forced,
                            std::size_t slot_bytes) {
  PlannerOptions options;
  options.rates = basis.declared.rates;
  if (basis.calibrated) {
    options.calibrated = &basis.calibrated->topology;
    options.calibrated_rates = basis.calibrated->rates;
  }
  options.slot_bytes = slot_bytes;
  options.most_marks = kMaxMarks;
  options.forced = std::move(forced);
  options.measured = basis.measured;
  options.one_pass_on_one_node = true;
  return Planner::Make(basis.declared.topology, std::move(options));
}

Result<std::string> KeepMeasured(const Config& config, int ranks, const MeasuredTable& table) {
  if (config.cache_dir.empty())
    return Status(StatusCode::kInvalidArgument,
                  "there is no folder to keep measurements in; set TIDEGATE_CACHE_DIR");
  std::string path = MeasuredFile(config, ranks);
  TIDEGATE_RETURN_IF_ERROR(
      ReplaceCacheFile(path, FormatMeasuredFile(ThisMachinesName(), ranks, table)));
  return path;
}

std::string FormatPlanBasis(const PlanBasis& basis) {
  nlohmann::json json = {{"tidegate_plan_basis", kFormat},
                         {"declared", ToJson(basis.declared)},
                         {"chunk_bytes", basis.paths.chunk_bytes},
                         {"stream_bytes", basis.paths.stream_bytes},
                         {"single_copy_bytes", basis.paths.single_copy_bytes},
                         {"crowded_single_copy_bytes", basis.paths.crowded_single_copy_bytes}};
  if (basis.calibrated) json["calibrated"] = ToJson(*basis.calibrated);
  if (!basis.measured.empty()) json["measured"] = ToJson(basis.measured);
  return json.dump();
}

Result<PlanBasis> ParsePlanBasis(std::string_view text) {
  const Result<nlohmann::json> json = ParseJson(text);
  if (!json.ok()) return json.status();
  const JsonView root(json.value());
  TIDEGATE_RETURN_IF_ERROR(
      root.CheckObject({"tidegate_plan_basis", "declared", "calibrated", "measured", "chunk_bytes",
                        "stream_bytes", "single_copy_bytes", "crowded_single_copy_bytes"}));
  std::int64_t format = 0;
  TIDEGATE_RETURN_IF_ERROR(root.Read("tidegate_plan_basis", format, kFormat, kFormat));
  if (!root.has("declared")) return root.Bad("has no declared machine");
  Result<MachineModel> declared = ReadModel(root.at("declared"));
  if (!declared.ok()) return declared.status();
  PlanBasis basis{.declared = std::move(declared).value()};
  TIDEGATE_RETURN_IF_ERROR(ReadDataPaths(root, &basis.paths));
  std::int64_t crowded = 0;
  TIDEGATE_RETURN_IF_ERROR(root.Read("crowded_single_copy_bytes", crowded, std::int64_t{0},
                                     std::int64_t{kMostCallBytes}));
  basis.paths.crowded_single_copy_bytes = static_cast<std::size_t>(crowded);
  if (root.has("measured")) {
    Result<MeasuredTable> measured = ReadMeasuredTable(root.at("measured"));
    if (!measured.ok()) return measured.status();
    basis.measured = std::move(measured).value();
  }
  if (!root.has("calibrated")) return basis;
  Result<MachineModel> calibrated = ReadModel(root.at("calibrated"));
  if (!calibrated.ok()) return calibrated.status();
  if (!(calibrated.value().topology.placement() == basis.declared.topology.placement()))
    return root.at("calibrated").Bad("is another machine than the declared one");
  basis.calibrated = std::move(calibrated).value();
  return basis;
}

}  // namespace tidegate
