#include "collectives/topology/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "collectives/topology/fake_cluster.h"
#include "common/check.h"

namespace tidegate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlacementTest, NodesAreNumberedInTheOrderOfTheirFirstRanks) {
  const Placement placement = Placement::Make(std::vector<int>{7, 3, 7, 7, 3}).value();
  EXPECT_EQ(placement.ranks(), 5);
  EXPECT_EQ(placement.nodes(), 2);
  EXPECT_THAT(placement.ranks_on(0), ElementsAre(0, 2, 3));
  EXPECT_THAT(placement.ranks_on(1), ElementsAre(1, 4));
  EXPECT_EQ(placement.node_of(4), 1);
  EXPECT_EQ(placement.local_of(4), 1);
  EXPECT_EQ(placement.ranks_on_largest_node(), 3);
  EXPECT_FALSE(placement.is_even());
}

TEST(PlacementTest, NamesOfNodesDoNotMatter) {
  EXPECT_EQ(Placement::Make(std::vector<int>{9, 9, 1, 1}).value(), Placement::Block(2, 2));
  EXPECT_TRUE(Placement::Block(2, 2).is_even());
  EXPECT_EQ(Placement::OneNode(3).nodes(), 1);
}

TEST(PlacementTest, NoRanksAndTooManyAreRefused) {
  EXPECT_THAT(Placement::Make(std::vector<int>{}).status().message(), HasSubstr("of 0 ranks"));
  EXPECT_FALSE(Placement::Make(std::vector<int>(Placement::kMaxRanks + 1, 0)).ok());
}

TEST(PlacementTest, SwitchesArePartOfIt) {
  const Placement plain = Placement::Block(6, 2);
  EXPECT_EQ(plain.nodes_per_switch(), 1);
  const Placement pairs = plain.WithSwitches(2);
  EXPECT_EQ(pairs.nodes_per_switch(), 2);
  EXPECT_EQ(pairs.ranks(), 12);
  EXPECT_FALSE(pairs == plain);
  EXPECT_EQ(plain.WithSwitches(6), plain) << "one switch for all";
  EXPECT_THROW(static_cast<void>(plain.WithSwitches(4)), InvariantError);
}

TEST(PlacementTest, ATopologySaysWhichNodesShareASwitch) {
  const auto below_each = [](int nodes, FabricKind fabric, int nodes_per_leaf) {
    FakeClusterOptions options;
    options.fabric = fabric;
    options.rails = 2;
    options.nodes_per_leaf = nodes_per_leaf;
    return FakeCluster(nodes, 2, options).placement().nodes_per_switch();
  };
  EXPECT_EQ(below_each(8, FabricKind::kFatTree, 4), 4);
  EXPECT_EQ(below_each(8, FabricKind::kRailOptimised, 2), 2);
  EXPECT_EQ(below_each(8, FabricKind::kSingleSwitch, 4), 1);
  EXPECT_EQ(below_each(8, FabricKind::kFatTree, 8), 1) << "all below one";
  EXPECT_EQ(below_each(6, FabricKind::kFatTree, 4), 1) << "4 and 2";
}

}  // namespace
}  // namespace tidegate
