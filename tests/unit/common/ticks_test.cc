#include "common/ticks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tidegate {
namespace {

TEST(TicksTest, NeverGoBackOnAThread) {
  Ticks last = NowInTicks();
  for (int i = 0; i < 1000; ++i) {
    const Ticks now = NowInTicks();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(TicksTest, DurationIsThatOfTheClock) {
  const TimePoint before = SteadyClock().Now();
  const Ticks begin = NowInTicks();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Ticks counted = TicksSince(begin);
  const Nanoseconds at_most = SteadyClock().Now() - before;
  // Counted within what the clock saw; the rate is known to a thousandth by now.
  EXPECT_GE(DurationOf(counted), std::chrono::microseconds(49900));
  EXPECT_LE(DurationOf(counted), at_most * 1.002);
}

TEST(TicksTest, NothingTakesNoTime) { EXPECT_EQ(DurationOf(0), Nanoseconds(0)); }

TEST(TicksTest, WhatBeginsInTheFutureHasTakenNoTime) {
  EXPECT_EQ(TicksSince(NowInTicks() + (Ticks{1} << 40)), 0U);
}

}  // namespace
}  // namespace tidegate
