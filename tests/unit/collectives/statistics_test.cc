#include "collectives/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "collectives/communicator.h"

namespace tidegate {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(StatisticsTest, WhatLanesAndTransfersOfAGroupCountIsAddedUpByName) {
  const auto group = StatisticsRegistry::Process().Group("added up", {0, 1});
  const auto first = group->TakeCounters();
  const auto second = group->TakeCounters();
  EXPECT_NE(first, second);
  first->Count(Collective::kAllGather, {.calls = 2, .bytes = 10, .duration = 1s});
  first->Count(Collective::kBarrier, {.calls = 1, .duration = 4ms});
  second->Count(Collective::kAllGather,
                {.calls = 1, .bytes = 5, .duration = 500ms, .failed = true});
  group->CountTransfer("send", 7, 2s, false);
  EXPECT_THAT(StatsJson(),
              HasSubstr(R"("added up":{"ranks":[0,1],"ops":{)"
                        R"("all_gather":{"calls":3,"bytes":10,"seconds":1.500000000,"errors":1},)"
                        R"("barrier":{"calls":1,"bytes":0,"seconds":0.004000000,"errors":0},)"
                        R"("send":{"calls":1,"bytes":7,"seconds":2.000000000,"errors":0}}})"));
}

TEST(StatisticsTest, CountersGivenBackAreHandedOutAgainAndGoOn) {
  const auto group = StatisticsRegistry::Process().Group("goes on", {0});
  const CollectiveCounters* counters = nullptr;
  for (int use = 0; use < 3; ++use) {
    const std::shared_ptr<CollectiveCounters> taken = group->TakeCounters();
    if (use > 0) {
      EXPECT_EQ(taken.get(), counters);
    }
    counters = taken.get();
    taken->Count(Collective::kReduce, {.calls = 1, .bytes = 4});
  }
  EXPECT_THAT(StatsJson(), HasSubstr(R"("reduce":{"calls":3,"bytes":12,)"));
}

TEST(StatisticsTest, MayBeReadWhileALaneCounts) {
  constexpr int kCalls = 1000;
  const auto group = StatisticsRegistry::Process().Group("read meanwhile", {0});
  std::thread lane([&] {
    const auto counters = group->TakeCounters();
    for (int i = 0; i < kCalls; ++i) counters->Count(Collective::kGather, {.calls = 1});
  });
  for (int i = 0; i < 10; ++i) EXPECT_THAT(StatsJson(), HasSubstr(R"("read meanwhile":)"));
  lane.join();
  EXPECT_THAT(StatsJson(), HasSubstr(R"("gather":{"calls":1000,)"));
}

}  // namespace
}  // namespace tidegate
