#include "collectives/verifier/happened_before.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tidegate::verifier {
namespace {

using Time = HappenedBefore::Time;

TEST(HappenedBeforeTest, ARankKnowsWhatItWasToldAndNothingLater) {
  HappenedBefore before(Orbit(3, 3));
  before.Tick(1);
  const Time told = before.Tick(1);
  before.Acquire(0, 1, told);
  EXPECT_TRUE(before.KnowsDirectly(0, 1, told - 1));
  EXPECT_TRUE(before.KnowsDirectly(0, 1, told));
  EXPECT_FALSE(before.KnowsDirectly(0, 1, told + 1));
  EXPECT_FALSE(before.Knows(0, 1, told + 1));
  EXPECT_FALSE(before.Knows(0, 2, 1));
  EXPECT_FALSE(before.Knows(1, 0, 1));
}

TEST(HappenedBeforeTest, ARankKnowsWhatOthersKnewWhenTheySignalled) {
  HappenedBefore before(Orbit(4, 4));
  before.Acquire(1, 0, before.Tick(0));
  const Time early = before.Tick(1);
  before.Acquire(1, 0, before.Tick(0));
  const Time late = before.Tick(1);
  before.Acquire(2, 1, early);
  EXPECT_TRUE(before.KnowsBy(2, 1, 0, 1));
  EXPECT_FALSE(before.KnowsBy(2, 1, 0, 2));  // Of which rank 1 was told after it had signalled.
  EXPECT_FALSE(before.Knows(2, 0, 2));
  before.Acquire(3, 2, before.Tick(2));
  EXPECT_FALSE(before.KnowsDirectly(3, 0, 1));
  EXPECT_FALSE(before.KnowsBy(3, 2, 0, 1));
  EXPECT_TRUE(before.Knows(3, 0, 1));
  before.Acquire(2, 1, late);
  EXPECT_TRUE(before.KnowsBy(2, 1, 0, 2));
  EXPECT_FALSE(before.Knows(3, 0, 2));
}

TEST(HappenedBeforeTest, RanksThatAreNotExecutedKnowWhatTheirRepresentativesDo) {
  // Each is told by the next one, around the circle.
  HappenedBefore before(Orbit(6, 2));
  before.Acquire(0, 1, before.Tick(1));
  before.Tick(0);
  before.Acquire(1, 2, 1);  // By rank 2, as by rank 0.
  const Time last = before.Tick(1);
  EXPECT_TRUE(before.KnowsBy(1, 2, 3, 1));
  EXPECT_FALSE(before.Knows(1, 4, 1));  // Rank 3 told rank 2 before it was told by rank 4.
  before.Acquire(0, 1, last);
  EXPECT_TRUE(before.KnowsBy(0, 1, 2, 1));
  EXPECT_FALSE(before.KnowsBy(0, 1, 3, 1));
  EXPECT_TRUE(before.Knows(0, 3, 1));
}

TEST(HappenedBeforeTest, AgreesWithVectorClocks) {
  constexpr int kRanks = 5;
  std::mt19937 random(1);  // The same in every run. NOLINT(bugprone-random-generator-seed)
  const auto pick = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  int known = 0;
  int asked = 0;
  for (int run = 0; run < 50; ++run) {
    HappenedBefore before(Orbit(kRanks, kRanks));
    using Clock = std::vector<Time>;
    std::vector<Clock> clocks(kRanks, Clock(kRanks, 0));
    std::vector<std::vector<Clock>> history(kRanks);  // By rank and step.
    for (int step = 0; step < 60; ++step) {
      const std::size_t rank = pick(kRanks);
      const std::size_t peer = pick(kRanks);
      if (peer == rank || history[peer].empty()) {
        clocks[rank][rank] = before.Tick(static_cast<int>(rank));
        history[rank].push_back(clocks[rank]);
        continue;
      }
      // A wait may be for a signal of long ago.
      const Clock& signal = history[peer][pick(history[peer].size())];
      before.Acquire(static_cast<int>(rank), static_cast<int>(peer), signal[peer]);
      for (std::size_t i = 0; i < kRanks; ++i)
        clocks[rank][i] = std::max(clocks[rank][i], signal[i]);
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      for (std::size_t other = 0; other < kRanks; ++other) {
        for (Time when = 1; other != rank && when <= history[other].size(); ++when) {
          const bool is_over = clocks[rank][other] >= when;
          ASSERT_EQ(before.Knows(static_cast<int>(rank), static_cast<int>(other), when), is_over);
          known += is_over ? 1 : 0;
          ++asked;
        }
      }
    }
  }
  EXPECT_GT(known, asked / 4);
  EXPECT_LT(known, asked * 3 / 4);
}

}  // namespace
}  // namespace tidegate::verifier
