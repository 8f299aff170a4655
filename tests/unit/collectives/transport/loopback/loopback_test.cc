#include "collectives/transport/loopback/loopback.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace tidegate {
namespace {

TEST(LoopbackTest, EveryRankSeesEveryStage) {
  LoopbackGroup group(3, 4096);
  for (int rank = 0; rank < 3; ++rank)
    for (int lane = 0; lane < kLanes; ++lane)
      group.transport(rank).StageOf(lane, rank)[5] = static_cast<std::byte>(10 * lane + rank);
  for (int rank = 0; rank < 3; ++rank)
    for (int owner = 0; owner < 3; ++owner)
      for (int lane = 0; lane < kLanes; ++lane)
        EXPECT_EQ(group.transport(rank).StageOf(lane, owner)[5],
                  static_cast<std::byte>(10 * lane + owner));
}

TEST(LoopbackTest, WakesWhenAskedToAndWhenTheGroupEnds) {
  LoopbackGroup group(2, 4096);
  int wakes = 0;
  group.set_wake([&] { ++wakes; });
  group.transport(0).Arrive(0, 1, {}, {});
  group.transport(0).Signal(0, kReady, 1);
  EXPECT_EQ(wakes, 0);
  group.transport(0).Wake();
  EXPECT_EQ(wakes, 1);
  group.transport(0).Fail({StatusCode::kAborted, 0, 0, "abort"});
  EXPECT_EQ(wakes, 2);
  group.transport(0).PublishLeft();
  EXPECT_EQ(wakes, 3);
}

TEST(LoopbackTest, AScheduleOfVisibilityDelaysWhatIsThere) {
  LoopbackGroup group(2, 4096);
  bool visible = false;
  int asked = 0;
  group.set_visibility([&](int rank, int peer) {
    ++asked;
    EXPECT_EQ(rank, 1);
    EXPECT_EQ(peer, 0);
    return visible;
  });
  EXPECT_FALSE(group.transport(1).HasReached(0, 0, kReady, 1));
  EXPECT_EQ(asked, 0) << "it is not there";
  group.transport(0).Signal(0, kReady, 1);
  group.transport(0).Arrive(0, 1, {}, {});
  EXPECT_FALSE(group.transport(1).HasReached(0, 0, kReady, 1));
  EXPECT_FALSE(group.transport(1).HasArrived(0, 0, 1));
  visible = true;
  EXPECT_TRUE(group.transport(1).HasReached(0, 0, kReady, 1));
  EXPECT_TRUE(group.transport(1).HasArrived(0, 0, 1));
}

}  // namespace
}  // namespace tidegate
