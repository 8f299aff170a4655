// Prints the table of docs/scale.md: all-gather and reduce-scatter, column first against a flat
// ring, on clusters that nobody here has.
//
//   tidegate_scale [--only CLUSTER] [--coll COLLECTIVE] [--algo ALGORITHM,...]
//                  [--chunks N,...] [--from MIB] [--jitter SECONDS] [RANKS ...] > table.md
//
// All clusters, both collectives, the fastest algorithm and 1024, 16384 and 65536 ranks where
// nothing is said.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bench/scale/scenarios.h"
#include "collectives/algorithms/algorithms.h"
#include "collectives/simulator/simulator.h"
#include "common/check.h"

namespace tidegate::scale {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kSizes[] = {kMiB, 64 * kMiB, 1024 * kMiB, 4096 * kMiB, 16384 * kMiB};
/// Chunkings that need more are not considered.
constexpr std::uint64_t kMostStageBytes = 4096 * kMiB;
/// A shard is not cut into smaller ones.
constexpr std::uint64_t kLeastChunkBytes = 1024;
constexpr double kCoreBps = 2.4e12;

struct Run {
  Simulation simulation;
  std::string algorithm;
};

struct Totals {
  std::int64_t events = 0;
  std::int64_t steps = 0;
  int runs = 0;
  double seconds = 0;
} totals;

class Bench {
 public:
  Bench(const Topology& topology, int orbit, double jitter_s)
      : topology_(topology), jitter_s_(jitter_s), simulator_(Make(topology, orbit)) {}

  /// The faster one of `best` and `name`, which is also added to if it is the first.
  void Try(Collective collective, const std::string& name, std::uint64_t bytes, int chunks,
           std::vector<Run>& best) {
    const NamedAlgorithm* const algorithm = FindAlgorithm(collective, name);
    if (algorithm == nullptr || !algorithm->serves(topology_.placement())) return;
    const auto schedule = [&](int rank) {
      return algorithm->build(
          {.rank = rank, .ranks = topology_.ranks(), .placement = &topology_.placement()});
    };
    const std::uint64_t block = bytes / static_cast<std::uint64_t>(topology_.ranks());
    const auto parts = static_cast<std::uint64_t>(chunks);
    const std::uint64_t chunk = ((block + parts - 1) / parts + 63) / 64 * 64;
    const auto sub_slots = static_cast<std::uint64_t>(schedule(0).sub_slots);
    const std::uint64_t slots = chunks == 1 ? 1 : 2;
    if (slots * sub_slots * std::min(chunk, block) > kMostStageBytes) return;
    if (chunks > 1 && chunk < kLeastChunkBytes) return;
    SimulationInput input;
    input.schedule = schedule;
    input.blocks = {{block}};
    input.chunk_bytes = chunk;
    input.jitter_s = jitter_s_;
    const auto begin = std::chrono::steady_clock::now();
    Result<Simulation> result = simulator_.Run(input);
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    TIDEGATE_CHECK(result.ok());
    totals.events += result.value().events;
    totals.steps += result.value().steps;
    totals.seconds += wall;
    ++totals.runs;
    if (wall > 5)
      std::fprintf(stderr, "  %s %s of %llu MiB in %d: %.0f s\n",
                   std::string(NameOf(collective)).c_str(), name.c_str(),
                   static_cast<unsigned long long>(bytes / kMiB), chunks, wall);
    if (best.empty() || result.value().seconds < best[0].simulation.seconds)
      best = {{std::move(result).value(), name}};
  }

 private:
  static Simulator Make(const Topology& topology, int orbit) {
    SimulatorOptions options;
    options.rates.core_Bps = kCoreBps;
    options.orbit = orbit;
    Result<Simulator> simulator = Simulator::Make(topology, options);
    TIDEGATE_CHECK(simulator.ok());
    return std::move(simulator).value();
  }

  const Topology& topology_;
  const double jitter_s_;
  Simulator simulator_;
};

std::string Time(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%.0f us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, seconds < 0.1 ? "%.2f ms" : "%.0f ms", seconds * 1e3);
  }
  return text;
}

std::string Bytes(double bytes) {
  char text[32];
  if (bytes < 1e6) {
    std::snprintf(text, sizeof text, "%.0f KB", bytes / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.0f MB", bytes / 1e6);
  }
  return text;
}

std::string Size(std::uint64_t bytes) {
  return bytes < 1024 * kMiB ? std::to_string(bytes / kMiB) + " MB"
                             : std::to_string(bytes / (1024 * kMiB)) + " GB";
}

/// The flat ring in as few chunks as its stage allows: more only cost it latency.
std::vector<Run> Ring(Bench& bench, Collective collective, std::uint64_t bytes) {
  std::vector<Run> best;
  for (int chunks = 1; best.empty() && chunks <= 1024; chunks *= 2)
    bench.Try(collective, "ring", bytes, chunks, best);
  return best;
}

void PrintRow(const Scenario& scenario, Collective collective, std::uint64_t bytes, const Run& run,
              const Run& ring) {
  const Simulation& made = run.simulation;
  const double block = static_cast<double>(bytes) / scenario.topology.ranks();
  const Bound bound =
      BoundFor(scenario.topology, collective, {{static_cast<std::uint64_t>(block)}});
  const double nodes_bytes = static_cast<double>(bytes) * scenario.topology.nodes();
  std::printf("| %s | %s | %s | %s | %lld | %s | %.1f%% | %s | %.1fx | %.2f / %.2f / %.2f | %s |\n",
              scenario.name.c_str(), std::string(NameOf(collective)).c_str(), Size(bytes).c_str(),
              run.algorithm.c_str(), static_cast<long long>(made.chunks),
              Time(made.seconds).c_str(), 100 * bound.seconds / made.seconds,
              Time(ring.simulation.seconds).c_str(), ring.simulation.seconds / made.seconds,
              made.tier_bytes[1] / nodes_bytes, made.tier_bytes[2] / nodes_bytes,
              made.tier_bytes[3] / nodes_bytes,
              Bytes(static_cast<double>(made.peak_stage_bytes)).c_str());
  std::fflush(stdout);
}

/// What is asked for; empty: all.
struct Wanted {
  std::string cluster;
  std::string collective;
  std::string algorithms;  ///< By commas.
  std::string chunks;      ///< By commas.
  std::uint64_t least_bytes = 0;
  double jitter_s = 0;  ///< Of column algorithms, which are then simulated rank by rank.
};

/// Whether `one` is in a list by commas; an empty one has all.
bool IsListed(const std::string& list, const std::string& one) {
  return list.empty() || ("," + list + ",").find("," + one + ",") != std::string::npos;
}

/// The fastest of all hierarchical algorithms and chunkings that are tried.
std::vector<Run> Best(Bench& bench, Collective collective, std::uint64_t bytes, int ranks,
                      int actors, const Wanted& wanted) {
  std::vector<Run> best;
  const auto attempt = [&](const char* name, int chunks) {
    if (IsListed(wanted.algorithms, name) && IsListed(wanted.chunks, std::to_string(chunks)))
      bench.Try(collective, name, bytes, chunks, best);
  };
  for (const char* name :
       {"column_bruck", "column_far_first", "column_segmented_bruck", "column_segmented_far_first"})
    for (const int chunks : {1, 2, 4, 8, 16, 32, 64})
      if (actors * chunks <= 1 << 14) attempt(name, chunks);
  // A message for each node: only where these are few enough to be simulated in a minute.
  const std::int64_t messages = std::int64_t{actors} * ranks / kRanksPerNode;
  // Those of more only by name.
  const std::int64_t most_of_circle = std::int64_t{1} << (wanted.algorithms.empty() ? 19 : 21);
  for (const int chunks : {1, 2, 4})
    if (messages * chunks <= most_of_circle) attempt("column_circle", chunks);
  const std::uint64_t least = (messages >> 18) > 0 ? 4096 * kMiB : 1024 * kMiB;
  const std::int64_t most = std::int64_t{1} << (actors == ranks ? 17 : 19);
  for (const int chunks : {1, 4, 8})
    if (bytes >= least && messages * chunks <= most) attempt("column_ring", chunks);
  return best;
}

void PrintTable(int ranks, const Wanted& wanted) {
  std::printf("\n### %d ranks\n\n", ranks);
  std::printf(
      "| cluster | collective | S | algorithm | chunks | time | of bound | flat ring | ratio | "
      "node / leaf / spine | stage |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::map<std::tuple<std::string, Collective, std::uint64_t>, Run> rings;
  std::string notes;
  for (const Scenario& scenario : ScenariosOf(ranks)) {
    if (!wanted.cluster.empty() && scenario.name != wanted.cluster) continue;
    std::fprintf(stderr, "%d ranks, %s\n", ranks, scenario.name.c_str());
    if (!scenario.approximation.empty())
      notes += "- " + scenario.name + " is approximated: " + scenario.approximation + ".\n";
    const int orbit = wanted.jitter_s > 0 ? 0 : scenario.orbit;
    Bench bench(scenario.topology, orbit, wanted.jitter_s);
    Bench ring_bench(scenario.ring_topology, scenario.ring_orbit, 0);
    const int actors = orbit == 0 ? ranks : orbit;
    for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
      if (!wanted.collective.empty() && NameOf(collective) != wanted.collective) continue;
      for (const std::uint64_t bytes : kSizes) {
        if (bytes < wanted.least_bytes) continue;
        std::vector<Run> best = Best(bench, collective, bytes, ranks, actors, wanted);
        const bool tries_ring = IsListed(wanted.algorithms, "ring");
        if (best.empty() && !tries_ring) continue;
        const auto key = std::tuple(scenario.ring, collective, bytes);
        if (!rings.contains(key)) rings[key] = Ring(ring_bench, collective, bytes)[0];
        const Run& ring = rings[key];
        if (tries_ring && (best.empty() || ring.simulation.seconds < best[0].simulation.seconds)) {
          // The ratio of a fat tree is to the ring on one switch, which may be slower on the tree.
          const bool is_elsewhere = scenario.ring_orbit != orbit && scenario.approximation.empty();
          const Run here = is_elsewhere ? Ring(bench, collective, bytes)[0] : ring;
          if (best.empty() || here.simulation.seconds < best[0].simulation.seconds) best = {here};
        }
        PrintRow(scenario, collective, bytes, best[0], ring);
      }
    }
  }
  std::printf("\n%s", notes.c_str());
}

}  // namespace
}  // namespace tidegate::scale

// What it throws ends it, with its message. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  std::vector<int> counts;
  tidegate::scale::Wanted wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--only" && i + 1 < argc) {
      wanted.cluster = argv[++i];
    } else if (argument == "--coll" && i + 1 < argc) {
      wanted.collective = argv[++i];
    } else if (argument == "--algo" && i + 1 < argc) {
      wanted.algorithms = argv[++i];
    } else if (argument == "--chunks" && i + 1 < argc) {
      wanted.chunks = argv[++i];
    } else if (argument == "--from" && i + 1 < argc) {
      wanted.least_bytes = std::strtoull(argv[++i], nullptr, 10) * tidegate::scale::kMiB;
    } else if (argument == "--jitter" && i + 1 < argc) {
      wanted.jitter_s = std::strtod(argv[++i], nullptr);
    } else {
      counts.push_back(static_cast<int>(std::strtol(argv[i], nullptr, 10)));
    }
  }
  if (counts.empty()) counts = {1024, 16384, 65536};
  for (const int ranks : counts) {
    if (ranks < 512 || ranks % 256 != 0) {
      std::fprintf(stderr, "tidegate_scale: %d ranks; a multiple of 256, at least 512\n", ranks);
      return 2;
    }
    tidegate::scale::PrintTable(ranks, wanted);
  }
  const auto& totals = tidegate::scale::totals;
  std::printf("\n%d simulations, %.3g steps, %.3g events, %.0f s: %.2g events/s.\n", totals.runs,
              static_cast<double>(totals.steps), static_cast<double>(totals.events), totals.seconds,
              static_cast<double>(totals.events) / totals.seconds);
  return 0;
}
