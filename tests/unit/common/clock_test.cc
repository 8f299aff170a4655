#include "common/clock.h"

#include <gtest/gtest.h>

#include <chrono>

namespace tidegate {
namespace {

using std::chrono::seconds;

TEST(ClockTest, SteadyClockNeverGoesBack) {
  TimePoint last = SteadyClock().Now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint now = SteadyClock().Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, DeadlineIsStartPlusTimeout) {
  EXPECT_EQ(DeadlineAfter(TimePoint(seconds(5)), seconds(2)), TimePoint(seconds(7)));
}

TEST(ClockTest, NoTimeoutIsNoDeadline) {
  EXPECT_EQ(DeadlineAfter(TimePoint(seconds(5)), seconds(0)), kNoDeadline);
  EXPECT_EQ(DeadlineAfter(TimePoint(seconds(5)), seconds(-1)), kNoDeadline);
}

TEST(ClockTest, OverflowingDeadlineIsNoDeadline) {
  EXPECT_EQ(DeadlineAfter(TimePoint(seconds(5)), Nanoseconds::max()), kNoDeadline);
  EXPECT_EQ(DeadlineAfter(kNoDeadline, Nanoseconds(1)), kNoDeadline);
}

}  // namespace
}  // namespace tidegate
