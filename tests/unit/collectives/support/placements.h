#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "collectives/topology/placement.h"

namespace tidegate::testing {

struct NamedPlacement {
  std::string name;
  Placement placement;
};

/// `ranks` ranks on one node, on nodes of one rank, and for each way of cutting them into nodes
/// that is listed, even and uneven, in blocks, round robin and at random; in blocks also with
/// several nodes below each switch.
inline std::vector<NamedPlacement> PlacementsOf(int ranks) {
  std::vector<std::vector<int>> sizes = {{ranks},
                                         std::vector<int>(static_cast<std::size_t>(ranks), 1)};
  for (int nodes = 2; nodes < ranks; ++nodes)
    if (ranks % nodes == 0) sizes.emplace_back(static_cast<std::size_t>(nodes), ranks / nodes);
  for (const std::vector<int>& uneven : {std::vector<int>{2, 1},
                                         {3, 1},
                                         {1, 3},
                                         {3, 2},
                                         {2, 1, 2},
                                         {4, 1},
                                         {4, 2},
                                         {1, 4, 1},
                                         {5, 2},
                                         {3, 3, 1},
                                         {5, 2, 1},
                                         {1, 2, 5},
                                         {3, 3, 2}})
    sizes.push_back(uneven);

  std::vector<NamedPlacement> all;
  for (const std::vector<int>& nodes : sizes) {
    std::vector<int> block;
    std::string shape;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      block.insert(block.end(), static_cast<std::size_t>(nodes[node]), static_cast<int>(node));
      shape += (node == 0 ? "" : "+") + std::to_string(nodes[node]);
    }
    if (static_cast<int>(block.size()) != ranks) continue;
    all.push_back({shape + " in blocks", Placement::Make(block).value()});
    const auto count = static_cast<int>(nodes.size());
    for (int below = 2; below < count; ++below)
      if (count % below == 0)
        all.push_back({shape + ", " + std::to_string(below) + " nodes a switch",
                       all.back().placement.WithSwitches(below)});
    if (nodes.size() == 1 || nodes.size() == block.size()) continue;
    std::vector<int> left = nodes;
    std::vector<int> round_robin;
    for (std::size_t node = 0; round_robin.size() < block.size(); node = (node + 1) % left.size())
      if (left[node]-- > 0) round_robin.push_back(static_cast<int>(node));
    all.push_back({shape + " round robin", Placement::Make(round_robin).value()});
    std::mt19937 random(static_cast<std::uint32_t>(ranks));
    std::shuffle(block.begin(), block.end(), random);
    all.push_back({shape + " at random", Placement::Make(block).value()});
  }
  return all;
}

}  // namespace tidegate::testing
