#include "collectives/topology/subset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "collectives/topology/fake_cluster.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

TEST(SelectRanksTest, MembersAreNumberedAsNamedAndMachinesStay) {
  const Topology job = FakeCluster(3, 2);
  const std::vector<int> members = {5, 0, 4};
  const Topology group = SelectRanks(job, members).value();
  EXPECT_EQ(group.placement(), Placement::Make(std::vector<int>{2, 0, 2}).value());
  EXPECT_EQ(group.nodes(), 3);
  EXPECT_EQ(job.vertices().size() - group.vertices().size(), 3u);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(group.vertex(group.rank_vertex(rank)).id,
              job.vertex(job.rank_vertex(members[static_cast<std::size_t>(rank)])).id);
}

TEST(SelectRanksTest, AllRanksInOrderAreTheJobItself) {
  const Topology job = FakeCluster(2, 3);
  EXPECT_EQ(SelectRanks(job, std::vector<int>{0, 1, 2, 3, 4, 5}).value(), job);
}

TEST(SelectRanksTest, RanksThatAreNotThereOrNamedTwiceAreRefused) {
  const Topology job = FakeCluster(2, 2);
  EXPECT_THAT(SelectRanks(job, std::vector<int>{0, 4}).status().message(),
              HasSubstr("rank 4 of a group is none of the 4 ranks described"));
  EXPECT_THAT(SelectRanks(job, std::vector<int>{1, 1}).status().message(), HasSubstr("twice"));
  EXPECT_FALSE(SelectRanks(job, std::vector<int>{-1}).ok());
}

}  // namespace
}  // namespace tidegate
