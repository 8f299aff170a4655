#include "collectives/executor/adaptive_wait.h"

#include <gtest/gtest.h>

namespace tidegate {
namespace {

/// Each look at the clock takes `step`.
class SteppingClock final : public Clock {
 public:
  explicit SteppingClock(Nanoseconds step) : step_(step) {}
  TimePoint Now() const override { return now_ += step_; }
  void set_step(Nanoseconds step) { step_ = step; }

 private:
  Nanoseconds step_;
  mutable TimePoint now_{};
};

constexpr int kSpinsCrowded = 10;

int PollsUntilSleep(AdaptiveWait& wait) {
  wait.Reset();
  int polls = 0;
  while (wait.PollAgain()) ++polls;
  return polls;
}

TEST(AdaptiveWaitTest, YieldsForABoundedTimeWhileYieldsAreQuick) {
  SteppingClock clock(std::chrono::microseconds(10));
  AdaptiveWait wait(clock, LimitsOfProgressThread());
  const int polls = PollsUntilSleep(wait);
  EXPECT_GT(polls, 60);
  EXPECT_LT(polls, 200);
}

TEST(AdaptiveWaitTest, RanksOfACoreShareTheTimeOfYields) {
  SteppingClock clock(std::chrono::microseconds(1));
  AdaptiveWait wait(clock, LimitsOfRanks(2));
  // Two looks at the clock a yield, so some 50 of them in 100 us.
  const int of_two = PollsUntilSleep(wait) - kSpinsCrowded;
  EXPECT_NEAR(of_two, 50, 2);
  wait.set_limits(LimitsOfRanks(4));
  const int of_four = PollsUntilSleep(wait) - kSpinsCrowded;
  EXPECT_NEAR(of_four, of_two / 2, 2);
}

/// Has `wait` yield once, slowly, and counts the waits after it that do not yield. Each takes 10
/// us.
int RestAfterASlowYield(AdaptiveWait& wait, SteppingClock& clock) {
  clock.set_step(std::chrono::milliseconds(2));
  PollsUntilSleep(wait);
  // Too few quick yields to change anything.
  clock.set_step(std::chrono::microseconds(100));
  int waits = 0;
  while (PollsUntilSleep(wait) < 13) ++waits;
  return waits;
}

TEST(AdaptiveWaitTest, SleepsAtOnceForAWhileAfterASlowYield) {
  SteppingClock clock(std::chrono::milliseconds(2));
  AdaptiveWait wait(clock, LimitsOfProgressThread());
  EXPECT_NEAR(RestAfterASlowYield(wait, clock), 40, 2);  // 4 ms.
}

TEST(AdaptiveWaitTest, RestsLongerAfterEachSlowYieldUpToALimit) {
  SteppingClock clock(std::chrono::milliseconds(2));
  AdaptiveWait wait(clock, LimitsOfProgressThread());
  for (const int milliseconds : {4, 8, 16, 32, 64, 128, 128}) {
    EXPECT_NEAR(RestAfterASlowYield(wait, clock), milliseconds * 10, 2);
  }
}

TEST(AdaptiveWaitTest, TrustsYieldsAgainAfterManyFastOnes) {
  SteppingClock clock(std::chrono::milliseconds(2));
  AdaptiveWait wait(clock, LimitsOfProgressThread());
  for (int i = 0; i < 8; ++i) RestAfterASlowYield(wait, clock);
  clock.set_step(std::chrono::microseconds(10));
  for (int i = 0; i < 20; ++i) EXPECT_GT(PollsUntilSleep(wait), 30);
  EXPECT_NEAR(RestAfterASlowYield(wait, clock), 40, 2);
}

TEST(AdaptiveWaitTest, SpinsLongerWhenEveryRankHasACore) {
  SteppingClock clock(std::chrono::milliseconds(2));
  AdaptiveWait alone(clock, LimitsOfRanks(2));
  alone.set_limits(LimitsOfRanks(1));
  EXPECT_GT(PollsUntilSleep(alone), 900);
}

}  // namespace
}  // namespace tidegate
