// Prints the table of docs/algorithms.md: how often each algorithm of the catalogue is the fastest,
// by how much, and which ones nobody would miss.
//
//   tidegate_wins [--small N] [--large N] [--seed N] [--fixtures N] > table.md    # 500, 60, 2026,
//   3
//
// --fixtures: 1: those of up to 1,024 ranks; 2: the larger ones, which take most of the time; 3:
// all.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "collectives/planner/planner.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/topology_json.h"
#include "common/check.h"

namespace tidegate::scale {
namespace {

/// What the planner calls equally fast.
constexpr double kEqual = 0.02;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr Collective kCollectivesAsked[] = {Collective::kAllGather, Collective::kReduceScatter,
                                            Collective::kAllReduce, Collective::kBroadcast,
                                            Collective::kReduce,    Collective::kGather,
                                            Collective::kScatter,   Collective::kAllToAll};

/// Seconds of one call by name of algorithm, on one machine.
struct Point {
  Collective collective = Collective::kAllGather;
  std::string what;  ///< "4x8, 64 KiB"
  std::map<std::string, double> seconds;
};

std::string Size(std::uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", value, units[unit]);
  return text;
}

class Wins {
 public:
  /// Prices one call on `topology` with everything that serves it.
  void Ask(const Topology& topology, const std::string& machine, Planner& planner,
           Collective collective, std::uint64_t bytes) {
    Point point;
    point.collective = collective;
    point.what = machine + ", " + Size(bytes);
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (algorithm.collective != collective || !algorithm.serves(topology.placement())) continue;
      const Result<double> price = planner.Price(algorithm, bytes);
      if (price.ok()) point.seconds[algorithm.name] = price.value();
    }
    if (!point.seconds.empty()) points_.push_back(std::move(point));
  }

  /// The row of `name` among all but `without`.
  struct Row {
    int served = 0;
    std::vector<double> leads;  ///< How much longer the best of the others takes, of those it wins.
    double best = 0;            ///< The longest lead ...
    std::string where;          ///< ... and the point where that was.
  };
  Row RowOf(Collective collective, const std::string& name,
            const std::set<std::string>& without) const {
    Row row;
    for (const Point& point : points_) {
      const auto own = point.seconds.find(name);
      if (point.collective != collective || own == point.seconds.end()) continue;
      ++row.served;
      double others = kNever;
      for (const auto& [other, seconds] : point.seconds)
        if (other != name && !without.contains(other)) others = std::min(others, seconds);
      if (others == kNever || own->second >= others) continue;
      row.leads.push_back(others / own->second - 1);
      if (row.leads.back() <= row.best) continue;
      row.best = row.leads.back();
      row.where = point.what;
    }
    std::ranges::sort(row.leads);
    return row;
  }

  void Print() const {
    std::printf(
        "| collective | algorithm | points | fastest | by more than 2%% | median lead | "
        "longest lead | at |\n|---|---|---|---|---|---|---|---|\n");
    for (const Collective collective : kCollectivesAsked) {
      for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
        if (algorithm.collective != collective) continue;
        const Row row = RowOf(collective, algorithm.name, {});
        const auto clear =
            std::ranges::count_if(row.leads, [](double lead) { return lead > kEqual; });
        std::printf("| %s | %s | %d | %zu | %ld |", std::string(NameOf(collective)).c_str(),
                    algorithm.name.c_str(), row.served, row.leads.size(), static_cast<long>(clear));
        if (row.leads.empty()) {
          std::printf(" | | |\n");
        } else {
          std::printf(" %.1f%% | %.1f%% | %s |\n", 100 * row.leads[row.leads.size() / 2],
                      100 * row.best, row.where.c_str());
        }
      }
    }
  }

  /// One after the other, what leads least over those that are left, until all lead somewhere by
  /// more than counts as equal. One name is one algorithm in all collectives that have it.
  void PrintWhatNobodyMisses() const {
    std::set<std::string> names;
    for (const NamedAlgorithm& algorithm : AllAlgorithms())
      if (std::ranges::find(kCollectivesAsked, algorithm.collective) != std::end(kCollectivesAsked))
        names.insert(algorithm.name);
    std::set<std::string> dropped;
    std::printf(
        "\n| can be left out | longest lead over those still there | at |\n|---|---|---|\n");
    while (true) {
      std::string least;
      Row least_row;
      least_row.best = kNever;
      for (const std::string& name : names) {
        if (dropped.contains(name)) continue;
        Row most;
        bool is_only = false;
        for (const Collective collective : kCollectivesAsked) {
          if (FindAlgorithm(collective, name) == nullptr) continue;
          Row row = RowOf(collective, name, dropped);
          row.where = std::string(NameOf(collective)) + ", " + row.where;
          if (row.best > most.best) most = row;
          is_only = is_only || IsOnly(collective, name, dropped);
        }
        if (!is_only && most.best < least_row.best) {
          least = name;
          least_row = most;
        }
      }
      if (least_row.best > kEqual) return;
      dropped.insert(least);
      std::printf("| %s | %.2f%% | %s |\n", least.c_str(), 100 * least_row.best,
                  least_row.where.c_str());
    }
  }
  std::size_t points() const { return points_.size(); }

 private:
  /// Whether something would serve no more without it.
  bool IsOnly(Collective collective, const std::string& name,
              const std::set<std::string>& without) const {
    return std::ranges::any_of(points_, [&](const Point& point) {
      if (point.collective != collective || !point.seconds.contains(name)) return false;
      return std::ranges::none_of(point.seconds, [&](const auto& entry) {
        return entry.first != name && !without.contains(entry.first);
      });
    });
  }

  std::vector<Point> points_;
};

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int Pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  double Logarithmic(double least, double most) {
    return std::exp(
        std::uniform_real_distribution<double>(std::log(least), std::log(most))(random_));
  }

 private:
  std::mt19937 random_;
};

/// A cluster as tests/unit/collectives/planner/regret_test.cc draws those on a single switch, or of
/// more nodes, and one size for all collectives.
void AskRandom(Draw& draw, bool is_large, Wins& wins) {
  std::vector<int> ranks_of_node;
  const int nodes = is_large ? draw.Pick(7, 64) : draw.Pick(1, 6);
  const int per_node = is_large ? draw.Pick(1, 8) : draw.Pick(1, 6);
  const bool skewed = !is_large && draw.Pick(0, 3) == 0;
  ranks_of_node.reserve(static_cast<std::size_t>(nodes));
  for (int node = 0; node < nodes; ++node)
    ranks_of_node.push_back(skewed ? draw.Pick(1, 6) : per_node);
  FakeClusterOptions options;
  options.intra_latency_s = draw.Logarithmic(2e-7, 5e-6);
  options.intra_bandwidth_Bps = draw.Logarithmic(5e9, 400e9);
  options.inter_latency_s = options.intra_latency_s * draw.Logarithmic(1, 30);
  options.nic_bandwidth_Bps = draw.Logarithmic(1e8, 50e9);
  options.rails = draw.Pick(0, 1) == 0 ? 1 : per_node;
  const bool round_robin = !is_large && draw.Pick(0, 3) == 0;
  const bool is_gpu = draw.Pick(0, 1) == 0;
  const auto bytes = static_cast<std::uint64_t>(draw.Logarithmic(1 << 10, 4.0 * (1 << 30)));
  Topology topology = MakeFakeCluster(ranks_of_node, options).value();
  if (topology.ranks() == 1) return;
  if (round_robin) topology = Renumber(topology, RoundRobinNumbers(topology)).value();
  PlannerOptions planning;
  planning.rates.core_Bps = is_gpu ? 2.4e12 : 20e9;
  if (!is_gpu) planning.rates.memory_Bps = 80e9;
  Planner planner = Planner::Make(topology, planning).value();
  std::string machine = std::to_string(nodes) + "x" + std::to_string(per_node);
  if (skewed) machine = std::to_string(topology.ranks()) + " ranks on " + std::to_string(nodes);
  for (const Collective collective : kCollectivesAsked)
    wins.Ask(topology, machine, planner, collective, bytes);
}

void AskFixture(const std::string& file, int which, Wins& wins) {
  const Topology topology = LoadTopology(file).value();
  const bool is_large = topology.ranks() > 1024;
  if ((which & (is_large ? 2 : 1)) == 0) return;
  std::fprintf(stderr, "%s\n", file.c_str());
  // Where a column has thousands of blocks, its chunks are too small in the default stage.
  PlannerOptions planning;
  if (is_large) planning.slot_bytes = std::size_t{1} << 30;
  Planner planner = Planner::Make(topology, planning).value();
  const std::string name = std::filesystem::path(file).stem().string();
  for (int power = 32; power >= 10; power -= is_large ? 8 : 2)
    for (const Collective collective : kCollectivesAsked)
      wins.Ask(topology, name, planner, collective, std::uint64_t{1} << power);
}

void AskFixtures(int which, Wins& wins) {
  std::set<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(TIDEGATE_SOURCE_DIR "/tests/data/topology"))
    files.insert(entry.path().string());
  for (const std::string& file : files) AskFixture(file, which, wins);
}

int CountAfter(int argc, char** argv, const std::string& option, int otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == option) return static_cast<int>(std::strtol(argv[i + 1], nullptr, 10));
  return otherwise;
}

}  // namespace
}  // namespace tidegate::scale

// What it throws ends it, with its message. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  using namespace tidegate::scale;
  const int small = CountAfter(argc, argv, "--small", 500);
  const int large = CountAfter(argc, argv, "--large", 60);
  Draw draw(static_cast<unsigned>(CountAfter(argc, argv, "--seed", 2026)));
  Wins wins;
  for (int i = 0; i < small + large; ++i) {
    if (i % 50 == 0) std::fprintf(stderr, "%d of %d clusters\n", i, small + large);
    AskRandom(draw, i >= small, wins);
  }
  AskFixtures(CountAfter(argc, argv, "--fixtures", 3), wins);
  std::printf("%d small clusters, %d large ones and fixtures: %zu calls.\n\n", small, large,
              wins.points());
  wins.Print();
  wins.PrintWhatNobodyMisses();
  return 0;
}
