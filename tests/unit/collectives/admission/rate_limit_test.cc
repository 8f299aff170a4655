#include "collectives/admission/rate_limit.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tidegate {
namespace {

constexpr std::uint64_t kMB = 1'000'000;

TimePoint At(std::int64_t nanoseconds) { return TimePoint(Nanoseconds(nanoseconds)); }

/// Asks for pieces of `bytes` one after the other, each as soon as it is let through, until `end`:
/// the bytes that passed from `begin` on.
std::uint64_t Passed(RateLimit& limit, std::uint64_t bytes, TimePoint begin, TimePoint end) {
  std::uint64_t passed = 0;
  for (TimePoint now = begin; now < end;) {
    const TimePoint when = limit.Admit(bytes, now);
    if (when == now) passed += bytes;
    EXPECT_GE(when, now);
    now = when;
  }
  return passed;
}

TEST(RateLimitTest, LetsItsRateThrough) {
  for (const std::uint64_t rate : {10 * kMB, 333 * kMB, 2000 * kMB}) {
    for (const std::uint64_t piece : {std::uint64_t{1000}, std::uint64_t{65537}, kMB}) {
      RateLimit limit(rate, kMB);
      const auto passed =
          static_cast<double>(Passed(limit, piece, At(5), At(5) + std::chrono::seconds(2)));
      // The burst that it begins with; a piece that has just passed or is about to, and what comes
      // in the millisecond after which it was to ask again.
      const auto slack = static_cast<double>(piece + rate / 1000);
      EXPECT_NEAR(passed, 2.0 * static_cast<double>(rate) + kMB, slack + 1e-3 * passed)
          << rate << " B/s, pieces of " << piece;
    }
  }
}

TEST(RateLimitTest, LetsItsBurstThroughAtOnceAndNoMore) {
  RateLimit limit(kMB, 3000);
  const TimePoint now = At(1000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Admit(1000, now), now) << i;
  // A byte is a microsecond.
  EXPECT_EQ(limit.Admit(1000, now), now + std::chrono::microseconds(1000));
  // Asking took nothing. Better asked a millisecond later, but 10 bytes are there before.
  EXPECT_EQ(limit.Admit(10, now), now + std::chrono::microseconds(1000));
  const TimePoint soon = now + std::chrono::microseconds(10);
  EXPECT_GT(limit.Admit(11, soon), soon);
  EXPECT_EQ(limit.Admit(10, soon), soon);
}

TEST(RateLimitTest, APauseFillsTheBucketButNoMore) {
  RateLimit limit(kMB, 3000);
  const TimePoint later = At(0) + std::chrono::hours(24);
  EXPECT_EQ(limit.Admit(3000, At(0)), At(0));
  EXPECT_EQ(limit.Admit(3000, later), later);
  EXPECT_EQ(limit.Admit(1, later), later + std::chrono::microseconds(1000));
}

TEST(RateLimitTest, WhatIsLargerThanTheBurstPassesAloneAndIsPaidFor) {
  RateLimit limit(kMB, 1000);
  EXPECT_EQ(limit.Admit(5000, At(0)), At(0));
  // 5000 us until the bucket is full, half of it less until it is half full.
  EXPECT_EQ(limit.Admit(1, At(0)), At(0) + std::chrono::microseconds(4500));
  EXPECT_EQ(limit.Admit(5000, At(0)), At(0) + std::chrono::microseconds(5000));
  EXPECT_EQ(limit.Admit(5000, At(4'999'999)), At(5'000'000));
  EXPECT_EQ(limit.Admit(5000, At(5'000'000)), At(5'000'000));
}

TEST(RateLimitTest, NothingCostsNothing) {
  RateLimit limit(kMB, 1);
  EXPECT_EQ(limit.Admit(1, At(7)), At(7));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(limit.Admit(0, At(7)), At(7));
}

TEST(RateLimitTest, TheDefaultBurstIsAHundredthOfASecondOrAChunk) {
  EXPECT_EQ(RateLimit::DefaultBurst(2000 * kMB), 20 * kMB);
  EXPECT_EQ(RateLimit::DefaultBurst(kMB), 256U << 10);
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
