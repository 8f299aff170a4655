#include "python/bindings/cluster.h"

#include <optional>
#include <string_view>

#include <pybind11/stl.h>

#include "backend/error_translation.h"
#include "backend/gil.h"
#include "collectives/algorithms/algorithms.h"
#include "collectives/prepared_call.h"
#include "collectives/schedule/schedule_json.h"
#include "collectives/topology/discovery.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/lint.h"
#include "collectives/topology/routes.h"
#include "collectives/topology/topology_json.h"
#include "collectives/verifier/verifier.h"
#include "common/config.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

namespace py = pybind11;

[[noreturn]] void Refuse(const std::string& message) {
  ThrowStatus(Status(StatusCode::kInvalidArgument, message));
}

void OrThrow(const Status& status) {
  if (!status.ok()) ThrowStatus(status);
}

template <typename T>
T OrThrow(Result<T> result) {
  OrThrow(result.status());
  return std::move(result).value();
}

Collective CollectiveOrThrow(std::string_view name) {
  if (const std::optional<Collective> collective = CollectiveNamed(name)) return *collective;
  std::string known;
  for (int i = 0; i < kCollectives; ++i)
    known += (known.empty() ? "" : ", ") + std::string(NameOf(static_cast<Collective>(i)));
  Refuse("no collective is called " + std::string(name) + "; there are " + known);
}

std::unique_ptr<Cluster> Own(Result<Topology> topology) {
  return std::make_unique<Cluster>(OrThrow(std::move(topology)));
}

FakeClusterOptions FakeOptions(const std::string& fabric, int rails, double oversubscription) {
  const std::optional<FabricKind> kind = ParseFabricKind(fabric);
  if (!kind)
    Refuse("no fabric is called " + fabric +
           "; there are single_switch, fat_tree, rail_optimised and rail_only");
  return {.rails = rails, .fabric = *kind, .oversubscription = oversubscription};
}

Result<Topology> Discover(int ranks, const std::string& root) {
  const Result<Config> config = LoadConfig(ProcessEnvironment());
  if (!config.ok()) return config.status();
  const Result<MachineFacts> facts = ReadMachine(SystemSources(root));
  if (!facts.ok()) return facts.status();
  const Result<std::string> node = NodeIdentity(config.value(), root);
  if (!node.ok()) return node.status();
  if (ranks < 1) Refuse(std::to_string(ranks) + " ranks; there must be at least 1");
  const std::vector<RankSite> sites(static_cast<std::size_t>(ranks));
  const Result<Topology> machine =
      DescribeMachine(facts.value(), node.value(), sites, UsableCpus(root));
  if (!machine.ok()) return machine.status();
  const Result<TopologySettings> settings = TopologySettings::Read(config.value());
  if (!settings.ok()) return settings.status();
  return settings.value().Apply(machine.value());
}

}  // namespace

std::unique_ptr<Cluster> Cluster::Fake(const std::string& nodes, const std::string& fabric,
                                       int rails, double oversubscription, bool round_robin) {
  const FakeClusterOptions options = FakeOptions(fabric, rails, oversubscription);
  Topology cluster = OrThrow(MakeFakeCluster(OrThrow(ParseRanksOfNodes(nodes)), options));
  if (round_robin) return Own(Renumber(cluster, RoundRobinNumbers(cluster)));
  return Own(std::move(cluster));
}

std::unique_ptr<Cluster> Cluster::File(const std::string& path) { return Own(LoadTopology(path)); }

std::unique_ptr<Cluster> Cluster::Machine(int ranks, const std::string& root) {
  std::unique_ptr<Cluster> cluster = Own(Discover(ranks, root));
  cluster->is_this_machine_ = root == "/";
  return cluster;
}

std::vector<int> Cluster::RanksOfNodes() const {
  const Placement& placement = topology_.placement();
  std::vector<int> counts(static_cast<std::size_t>(placement.nodes()));
  for (int node = 0; node < placement.nodes(); ++node)
    counts[static_cast<std::size_t>(node)] = static_cast<int>(placement.ranks_on(node).size());
  return counts;
}

std::string Cluster::Json() const { return FormatTopology(topology_); }

py::list Cluster::Vertices() const {
  py::list vertices;
  for (const Vertex& vertex : topology_.vertices()) {
    py::dict entry;
    entry["id"] = vertex.id;
    entry["kind"] = VertexKindName(vertex.kind);
    entry["node"] = vertex.node;
    entry["parent"] = vertex.parent;
    entry["number"] = vertex.number;
    entry["rail"] = vertex.rail;
    entry["bandwidth_Bps"] = vertex.bandwidth_Bps;
    vertices.append(entry);
  }
  return vertices;
}

py::list Cluster::Links() const {
  py::list links;
  for (LinkId id = 0; id < topology_.link_end(); id += 2) {
    const Link& link = topology_.link(id);
    py::dict entry;
    entry["id"] = topology_.link_name(id);
    entry["from"] = link.a;
    entry["to"] = link.b;
    entry["latency_s"] = link.latency_s;
    entry["bandwidth_Bps"] = link.bandwidth_Bps[0];
    entry["bandwidth_back_Bps"] = link.bandwidth_Bps[1];
    entry["shared"] = link.shared;
    entry["path"] = PathClassName(link.path);
    links.append(entry);
  }
  return links;
}

std::vector<std::string> Cluster::Findings() const {
  std::vector<std::string> lines;
  for (const TopologyFinding& finding : LintTopology(topology_))
    lines.push_back(FormatFinding(finding));
  return lines;
}

py::dict Cluster::RouteBetween(int from, int to) const {
  for (const int rank : {from, to})
    if (rank < 0 || rank >= ranks())
      Refuse("rank " + std::to_string(rank) + " is outside [0, " + std::to_string(ranks()) + ")");
  const Route route = Router(topology_).Find(from, to);
  py::dict entry;
  entry["path"] = PathClassName(route.path);
  entry["latency_s"] = route.latency_s;
  entry["bandwidth_Bps"] = route.bandwidth_Bps;
  return entry;
}

std::vector<std::string> Cluster::Algorithms(const std::string& collective) const {
  const Collective asked = CollectiveOrThrow(collective);
  std::vector<std::string> names;
  for (const NamedAlgorithm& algorithm : AllAlgorithms())
    if (algorithm.collective == asked && algorithm.serves(topology_.placement()))
      names.push_back(algorithm.name);
  return names;
}

const NamedAlgorithm& Cluster::Named(const std::string& collective,
                                     const std::string& algorithm) const {
  const Collective asked = CollectiveOrThrow(collective);
  const NamedAlgorithm* const found = FindAlgorithm(asked, algorithm);
  if (found == nullptr || !found->serves(topology_.placement()))
    Refuse("no " + collective + " on these nodes is called " + algorithm + "; there are " +
           PossibleAlgorithms(asked, topology_.placement()));
  return *found;
}

std::function<Schedule(int rank)> Cluster::Programs(const NamedAlgorithm& algorithm,
                                                    int root) const {
  if (root < 0 || root >= ranks())
    Refuse("root " + std::to_string(root) + " is outside [0, " + std::to_string(ranks()) + ")");
  return [this, &algorithm, root](int rank) {
    return algorithm.build(
        {.rank = rank, .ranks = ranks(), .root = root, .placement = &topology_.placement()});
  };
}

Planner& Cluster::PlannerOfThis() {
  if (planner_ == nullptr) {
    Config config = OrThrow(LoadConfig(ProcessEnvironment()));
    const std::size_t slot_bytes = config.stage_bytes / kStageSlots;
    AlgorithmChoices forced = OrThrow(ParseAlgorithmChoices(config.algo));
    if (is_this_machine_) {
      config.topo_dump_file.clear();  // A group's, not a question's.
      basis_ = std::make_unique<PlanBasis>(OrThrow(MakePlanBasis(config, ranks())));
      planner_ =
          std::make_unique<Planner>(OrThrow(MakePlanner(*basis_, std::move(forced), slot_bytes)));
    } else {
      PlannerOptions options;
      options.slot_bytes = slot_bytes;
      options.forced = std::move(forced);
      planner_ = std::make_unique<Planner>(OrThrow(Planner::Make(topology_, std::move(options))));
    }
  }
  return *planner_;
}

const Topology& Cluster::PricedTopology() {
  if (!is_this_machine_) return topology_;
  PlannerOfThis();
  return basis_->calibrated ? basis_->calibrated->topology : basis_->declared.topology;
}

py::dict Cluster::Decide(const std::string& collective, std::uint64_t bytes, int root,
                         const std::optional<std::function<void(const std::string&)>>& watch) {
  const PlanRequest request{
      .collective = CollectiveOrThrow(collective), .bytes = bytes, .root = root};
  Planner::Watch tell;
  if (watch) tell = [&watch](const NamedAlgorithm& algorithm) { (*watch)(algorithm.name); };
  const Decision* decision = nullptr;
  {
    const GilRelease released;  // A function of Python takes it for as long as it runs.
    decision = OrThrow(PlannerOfThis().Decide(request, tell));
  }
  py::list candidates;
  for (const Candidate& candidate : decision->candidates) {
    py::dict entry;
    entry["algorithm"] = candidate.algorithm->name;
    entry["seconds"] = candidate.seconds;
    entry["measured_seconds"] = candidate.measured_seconds;
    entry["excluded"] = candidate.excluded;
    candidates.append(entry);
  }
  py::dict answer;
  answer["algorithm"] = decision->algorithm->name;
  answer["reason"] = decision->reason;
  answer["priced_bytes"] = decision->priced_bytes;
  answer["bound_seconds"] = decision->bound.seconds;
  answer["bound_cut"] = decision->bound.cut;
  answer["candidates"] = candidates;
  if (basis_ != nullptr) {
    py::dict paths;
    paths["chunk_bytes"] = basis_->paths.chunk_bytes;
    paths["stream_bytes"] = basis_->paths.stream_bytes;
    // As if the ranks had the processors of this process, all together.
    const std::size_t most = ranks() > UsableCpus() ? basis_->paths.crowded_single_copy_bytes
                                                    : basis_->paths.single_copy_bytes;
    paths["single_copy_bytes"] = most;
    paths["single_copy"] = MayCopyOnce(request.collective, request.bytes, most);
    answer["data_paths"] = paths;
  }
  return answer;
}

double Cluster::Price(const std::string& collective, const std::string& algorithm,
                      std::uint64_t bytes, int root) {
  const NamedAlgorithm& named = Named(collective, algorithm);
  const GilRelease released;
  return OrThrow(PlannerOfThis().Price(named, bytes, root));
}

py::dict Cluster::Shape(const std::string& collective, const std::string& algorithm,
                        int root) const {
  const Schedule schedule = Programs(Named(collective, algorithm), root)(0);
  const Config config = OrThrow(LoadConfig(ProcessEnvironment()));
  py::dict shape;
  shape["slot_bytes"] = config.stage_bytes / kStageSlots;
  shape["sub_slots"] = schedule.sub_slots;
  shape["parts"] = schedule.parts;
  return shape;
}

std::string Cluster::ScheduleOf(const std::string& collective, const std::string& algorithm,
                                int rank, int root, const std::string& form) const {
  if (rank < 0 || rank >= ranks())
    Refuse("rank " + std::to_string(rank) + " is outside [0, " + std::to_string(ranks()) + ")");
  const Schedule schedule = Programs(Named(collective, algorithm), root)(rank);
  return form == "json" ? ToJson(schedule) : ToText(schedule);
}

void Cluster::Verify(const std::string& collective, const std::string& algorithm, int root) const {
  const NamedAlgorithm& named = Named(collective, algorithm);
  const GilRelease released;
  const AlgorithmInput input{.ranks = ranks(), .root = root, .placement = &topology_.placement()};
  OrThrow(VerifyPlan(named.collective, topology_.placement(), root, Programs(named, root),
                     named.build.ClaimsFor(input), &topology_));
}

py::dict Cluster::Simulate(const std::string& collective, const std::string& algorithm,
                           std::uint64_t bytes, int root, std::uint64_t chunk_bytes, int orbit) {
  const NamedAlgorithm& named = Named(collective, algorithm);
  const Config config = OrThrow(LoadConfig(ProcessEnvironment()));
  SimulationInput input;
  input.schedule = Programs(named, root);
  input.blocks = BlockSizesOf(named.collective, bytes, ranks());
  input.slot_bytes = config.stage_bytes / kStageSlots;
  input.chunk_bytes = chunk_bytes;
  const Simulation run = [&] {
    const GilRelease released;
    auto simulator = simulators_.find(orbit);
    if (simulator == simulators_.end())
      simulator =
          simulators_
              .emplace(orbit, OrThrow(Simulator::Make(topology_, {.rates = {}, .orbit = orbit})))
              .first;
    return OrThrow(simulator->second.Run(input));
  }();
  py::dict tiers;
  for (int tier = 0; tier < kTiers; ++tier)
    tiers[py::str(std::string(TierName(static_cast<Tier>(tier))))] =
        run.tier_bytes[static_cast<std::size_t>(tier)];
  py::dict answer;
  answer["seconds"] = run.seconds;
  answer["tier_bytes"] = tiers;
  answer["chunk_bytes"] = run.chunk_bytes;
  answer["chunks"] = run.chunks;
  answer["peak_stage_bytes"] = run.peak_stage_bytes;
  answer["steps"] = run.steps;
  answer["events"] = run.events;
  return answer;
}

std::tuple<double, std::string> Cluster::BoundOf(const std::string& collective, std::uint64_t bytes,
                                                 int root) {
  const Collective asked = CollectiveOrThrow(collective);
  if (root < 0 || root >= ranks())
    Refuse("root " + std::to_string(root) + " is outside [0, " + std::to_string(ranks()) + ")");
  const Bound bound = BoundFor(PricedTopology(), asked, BlockSizesOf(asked, bytes, ranks()), root);
  return {bound.seconds, bound.cut};
}

}  // namespace tidegate
