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

int PollsUntilSleep(AdaptiveWait& wait) {
  wait.Reset();
  int polls = 0;
  while (wait.PollAgain()) ++polls;
  return polls;
}

TEST(AdaptiveWaitTest, YieldsForABoundedTimeWhileYieldsAreQuick) {
  SteppingClock clock(std::chrono::microseconds(10));
  AdaptiveWait wait(clock, /*oversubscribed=*/true);
  const int polls = PollsUntilSleep(wait);
  EXPECT_GT(polls, 60);
  EXPECT_LT(polls, 200);
}

TEST(AdaptiveWaitTest, SleepsAtOnceForAWhileAfterASlowYield) {
  SteppingClock clock(std::chrono::milliseconds(2));
  AdaptiveWait wait(clock, /*oversubscribed=*/true);
  PollsUntilSleep(wait);
  clock.set_step(std::chrono::microseconds(1));
  for (int i = 0; i < 63; ++i) EXPECT_EQ(PollsUntilSleep(wait), 50) << "wait " << i;
  PollsUntilSleep(wait);
  EXPECT_GT(PollsUntilSleep(wait), 100);
}

TEST(AdaptiveWaitTest, SpinsLongerWhenEveryRankHasACore) {
  SteppingClock clock(std::chrono::milliseconds(2));
  AdaptiveWait alone(clock, /*oversubscribed=*/false);
  EXPECT_GT(PollsUntilSleep(alone), 900);
}

}  // namespace
}  // namespace tidegate
