#include "common/futex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tidegate {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(FutexTest, ReturnsAtOnceWhenTheWordDiffers) {
  const std::atomic<std::uint32_t> word{1};
  FutexWait(word, 0, kNoDeadline);
}

TEST(FutexTest, ReturnsAtOnceWhenTheDeadlineHasPassed) {
  const std::atomic<std::uint32_t> word{1};
  FutexWait(word, 1, TimePoint());
  FutexWait(word, 1, SteadyClock().Now());
}

TEST(FutexTest, SleepsUntilTheDeadline) {
  const std::atomic<std::uint32_t> word{1};
  const TimePoint deadline = SteadyClock().Now() + milliseconds(20);
  while (SteadyClock().Now() < deadline) FutexWait(word, 1, deadline);
  EXPECT_LT(SteadyClock().Now(), deadline + seconds(10));
}

TEST(FutexTest, WakesEveryWaiter) {
  std::atomic<std::uint32_t> word{0};
  const TimePoint deadline = SteadyClock().Now() + seconds(30);
  const auto wait = [&] {
    while (word.load(std::memory_order_acquire) == 0 && SteadyClock().Now() < deadline) {
      FutexWait(word, 0, deadline);
    }
  };
  std::thread first(wait);
  std::thread second(wait);
  word.store(1, std::memory_order_release);
  FutexWakeAll(word);
  first.join();
  second.join();
  EXPECT_LT(SteadyClock().Now(), deadline);
}

}  // namespace
}  // namespace tidegate
