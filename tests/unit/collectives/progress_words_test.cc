// How many progress words schedules take: in shared memory a rank has kMaxMarks, between nodes a
// waiter has one for each that it waits for (docs/adr/0011-words-between-nodes.md).

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/transport/segment_layout.h"
#include "collectives/transport/transport.h"

namespace tidegate {
namespace {

Schedule ScheduleOf(const NamedAlgorithm& algorithm, const Placement& placement) {
  return algorithm.build(
      {.rank = 0, .ranks = placement.ranks(), .root = 0, .placement = &placement});
}

/// The words of other nodes' ranks that the rank waits for.
int AwaitedFromOtherNodes(const Schedule& schedule, const Placement& placement) {
  std::set<std::pair<int, Mark>> awaited;
  for (const Step& step : schedule.steps) {
    if (step.kind != StepKind::kWait) continue;
    EXPECT_NE(step.peer, kAllPeers) << schedule.name;
    if (placement.node_of(step.peer) != placement.node_of(schedule.rank))
      awaited.insert({step.peer, step.mark});
  }
  return static_cast<int>(awaited.size());
}

TEST(ProgressWordsTest, SufficeInSharedMemoryForEveryAlgorithm) {
  for (int nodes = 1; nodes <= kMaxRanks; ++nodes) {
    for (int per_node = 1; nodes * per_node <= kMaxRanks; ++per_node) {
      std::vector<Placement> placements = {Placement::Block(nodes, per_node)};
      for (int below = 2; below < nodes; below *= 2)
        if (nodes % below == 0) placements.push_back(placements[0].WithSwitches(below));
      for (const Placement& placement : placements)
        for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
          if (!algorithm.serves(placement)) continue;
          ASSERT_LE(ScheduleOf(algorithm, placement).Marks(), kMaxMarks)
              << NameOf(algorithm.collective) << " " << algorithm.name << ", " << nodes
              << " nodes of " << per_node;
        }
    }
  }
}

TEST(ProgressWordsTest, OfOtherNodesAreAtMostTwoForEachThatARankWaitsFor) {
  for (const int nodes : {128, 2048, 8192}) {
    const Placement placement = Placement::Block(nodes, 8).WithSwitches(32);
    for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter})
      for (const char* const name :
           {"column_segmented_bruck", "column_segmented_far_first", "column_circle"}) {
        const Schedule schedule = ScheduleOf(*FindAlgorithm(collective, name), placement);
        EXPECT_LE(AwaitedFromOtherNodes(schedule, placement), 2 * (nodes - 1))
            << name << ", " << nodes;
      }
  }
}

}  // namespace
}  // namespace tidegate
