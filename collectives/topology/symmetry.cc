#include "collectives/topology/symmetry.h"

#include <bit>
#include <unordered_set>

namespace tidegate {
namespace {

/// Rounds after which refinement stops though it might still tell more apart.
constexpr int kMostRounds = 64;

std::uint64_t Mix(std::uint64_t value) {  // the finaliser of splitmix64
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

std::uint64_t Mix(std::uint64_t seed, double value) {
  return Mix(seed ^ std::bit_cast<std::uint64_t>(value));
}

std::size_t CountDistinct(const std::vector<std::uint64_t>& colours) {
  return std::unordered_set<std::uint64_t>(colours.begin(), colours.end()).size();
}

}  // namespace

std::vector<std::uint64_t> RefineColours(const Topology& topology, VertexId distinct) {
  std::vector<std::uint64_t> colours;
  colours.reserve(topology.vertices().size());
  for (const Vertex& vertex : topology.vertices())
    colours.push_back(Mix(Mix(static_cast<std::uint64_t>(vertex.kind) + 1), vertex.bandwidth_Bps));
  if (distinct != kNone) colours[static_cast<std::size_t>(distinct)] = 0;
  std::vector<std::uint64_t> figures;
  figures.reserve(static_cast<std::size_t>(topology.link_end()));
  for (LinkId id = 0; id < topology.link_end(); ++id) {
    const Link& link = topology.link(id);
    std::uint64_t figure = static_cast<std::uint64_t>(link.path) * 2 + (link.shared ? 1 : 0);
    figure = Mix(Mix(figure), link.latency_s);
    figure = Mix(figure, topology.bandwidth_Bps(id));
    figures.push_back(Mix(figure, topology.bandwidth_Bps(Topology::reverse(id))));
  }
  std::vector<std::uint64_t> next(colours.size());
  std::size_t classes = CountDistinct(colours);
  for (int round = 0; round < kMostRounds; ++round) {
    for (VertexId v = 0; v < static_cast<VertexId>(colours.size()); ++v) {
      // A sum, so that the order of the links does not count.
      std::uint64_t sum = 0;
      for (const LinkId id : topology.leaving(v))
        sum += Mix(figures[static_cast<std::size_t>(id)] ^
                   Mix(colours[static_cast<std::size_t>(topology.to(id))]));
      next[static_cast<std::size_t>(v)] = Mix(Mix(colours[static_cast<std::size_t>(v)]) + sum);
    }
    colours.swap(next);
    const std::size_t refined = CountDistinct(colours);
    if (refined == classes) break;
    classes = refined;
  }
  return colours;
}

std::vector<int> RanksOfEachColour(const Topology& topology,
                                   const std::vector<std::uint64_t>& colours) {
  std::vector<int> ranks;
  std::unordered_set<std::uint64_t> seen;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    if (seen.insert(colours[static_cast<std::size_t>(topology.rank_vertex(rank))]).second)
      ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace tidegate
