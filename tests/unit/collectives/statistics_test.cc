#include "collectives/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
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
  first->Count(Collective::kAllGather, {.calls = 2, .bytes = 10});
  first->Count(Collective::kBarrier, {.calls = 1});
  second->Count(Collective::kAllGather, {.calls = 1, .bytes = 5, .failed = true});
  group->CountTransfer("send", 7, 2s, false);
  EXPECT_THAT(StatsJson(),
              HasSubstr(R"("added up":{"ranks":[0,1],"ops":{)"
                        R"("all_gather":{"calls":3,"bytes":10,"seconds":0.000000000,"errors":1},)"
                        R"("barrier":{"calls":1,"bytes":0,"seconds":0.000000000,"errors":0},)"
                        R"("send":{"calls":1,"bytes":7,"seconds":2.000000000,"errors":0}}})"));
}

TEST(StatisticsTest, WhatLanesTookIsAddedUp) {
  const auto group = StatisticsRegistry::Process().Group("took", {0});
  const auto counters = group->TakeCounters();
  const Ticks begin = NowInTicks();
  std::this_thread::sleep_for(20ms);
  const Ticks took = TicksSince(begin);
  for (int i = 0; i < 100; ++i)
    counters->Count(Collective::kBarrier, {.calls = 1, .duration = took});
  const std::string all = StatsJson();
  const std::string wanted =
      R"("took":{"ranks":[0],"ops":{"barrier":{"calls":100,"bytes":0,"seconds":)";
  const std::size_t at = all.find(wanted);
  ASSERT_NE(at, std::string::npos) << all;
  const double seconds = std::stod(all.substr(at + wanted.size()));
  EXPECT_GE(seconds, 1.99);
  EXPECT_LE(seconds, 1e-7 * static_cast<double>(DurationOf(took).count()) * 1.01);
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
