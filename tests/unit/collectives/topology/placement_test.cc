#include "collectives/topology/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace tidegate
