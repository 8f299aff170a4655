#include "collectives/admission/rate_limit.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tidegate {
namespace {

constexpr std::uint64_t kMB = 1'000'000;

TimePoint At(std::int64_t nanoseconds) { return TimePoint(Nanoseconds(nanoseconds)); }

/// Books pieces of `bytes` one after the other, each as soon as the one before has passed: the
/// bytes that passed from `begin` until `end`.
std::uint64_t Passed(RateLimit& limit, std::uint64_t bytes, TimePoint begin, TimePoint end) {
  std::uint64_t passed = 0;
  for (TimePoint now = begin;; passed += bytes) {
    const TimePoint when = limit.Book(bytes, now);
    EXPECT_GE(when, now);
    if (when >= end) return passed;
    now = when;
  }
}

TEST(RateLimitTest, LetsItsRateThrough) {
  for (const std::uint64_t rate : {10 * kMB, 333 * kMB, 2000 * kMB}) {
    for (const std::uint64_t piece : {std::uint64_t{1000}, std::uint64_t{65537}, kMB}) {
      RateLimit limit(rate, kMB);
      const auto passed =
          static_cast<double>(Passed(limit, piece, At(5), At(5) + std::chrono::seconds(2)));
      // The burst that it begins with; a piece that has just passed or is about to, and what comes
      // in the millisecond after which it was to ask again.
      const auto slack = static_cast<double>(piece) + 1e-3 * static_cast<double>(rate);
      EXPECT_NEAR(passed, 2.0 * static_cast<double>(rate) + kMB, slack + 1e-3 * passed)
          << rate << " B/s, pieces of " << piece;
    }
  }
}

TEST(RateLimitTest, LetsItsBurstThroughAtOnceAndNoMore) {
  RateLimit limit(kMB, 3000);
  const TimePoint now = At(1000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Book(1000, now), now) << i;
  // A byte is a microsecond.
  EXPECT_EQ(limit.Book(1000, now), now + std::chrono::microseconds(1000));
  EXPECT_EQ(limit.Book(2000, now), now + std::chrono::microseconds(3000));
}

TEST(RateLimitTest, ASleepIsForAMillisecondsWorthAtLeast) {
  RateLimit limit(kMB, 3000);
  const TimePoint now = At(1000);
  EXPECT_EQ(limit.Book(3000, now), now);
  EXPECT_EQ(limit.Book(10, now), now + std::chrono::microseconds(1000));
  // By then 990 more are there.
  const TimePoint then = now + std::chrono::microseconds(1000);
  EXPECT_EQ(limit.Book(990, then), then);
  EXPECT_GT(limit.Book(1, then), then);
}

TEST(RateLimitTest, APauseFillsTheBucketButNoMore) {
  RateLimit limit(kMB, 3000);
  const TimePoint later = At(0) + std::chrono::hours(24);
  EXPECT_EQ(limit.Book(3000, At(0)), At(0));
  EXPECT_EQ(limit.Book(3000, later), later);
  EXPECT_GT(limit.Book(1, later), later);
}

TEST(RateLimitTest, WhatIsLargerThanTheBurstPassesAloneAndIsPaidFor) {
  RateLimit limit(kMB, 1000);
  EXPECT_EQ(limit.Book(5000, At(0)), At(0));
  // 5000 us until the bucket is full again.
  EXPECT_EQ(limit.Book(5000, At(0)), At(0) + std::chrono::microseconds(5000));
  EXPECT_EQ(limit.Book(1000, At(0)), At(0) + std::chrono::microseconds(10000));
}

TEST(RateLimitTest, LargePiecesDoNotStarveBehindSmallOnes) {
  // Small ones are booked one after the other, as fast as they pass; a large one must not wait for
  // more than what was booked before it.
  for (const std::uint64_t large : {std::uint64_t{3000}, std::uint64_t{50'000}}) {
    RateLimit limit(kMB, 3000);
    TimePoint now = At(0);
    for (int i = 0; i < 100; ++i) now = limit.Book(100, now);
    const TimePoint passes = limit.Book(large, now);
    EXPECT_LE(passes, now + std::chrono::microseconds(4000));
    TimePoint small = limit.Book(100, now);
    EXPECT_GT(small, passes);
    for (int i = 0; i < 100; ++i) small = limit.Book(100, small);
    EXPECT_LE(small, passes + std::chrono::microseconds(large + 101 * 100 + 1000));
  }
}

TEST(RateLimitTest, NothingCostsNothing) {
  RateLimit limit(kMB, 1);
  EXPECT_EQ(limit.Book(0, At(7)), At(7));
  EXPECT_EQ(limit.Book(1, At(7)), At(7));
}

TEST(RateLimitTest, TheDefaultBurstIsAHundredthOfASecondOrTwoChunks) {
  EXPECT_EQ(RateLimit::DefaultBurst(2000 * kMB), 20 * kMB);
  EXPECT_EQ(RateLimit::DefaultBurst(kMB), 1U << 20);
}

TEST(RateLimitTest, ThreadsShareTheRate) {
  RateLimit limit(100 * kMB, kMB);
  std::vector<std::uint64_t> passed(4);
  std::vector<std::thread> threads;
  for (std::uint64_t& mine : passed)
    threads.emplace_back([&] { mine = Passed(limit, 1000, At(0), At(100'000'000)); });
  for (std::thread& thread : threads) thread.join();
  std::uint64_t all = 0;
  for (const std::uint64_t mine : passed) all += mine;
  // Threads are at different times of their own: a piece each may pass beyond the end, and what
  // comes in the last millisecond may be left.
  EXPECT_LE(all, 11 * kMB + 4 * 1000);
  EXPECT_GE(all, 11 * kMB - 100'000 - 4 * 1000);
}

}  // namespace
}  // namespace tidegate
