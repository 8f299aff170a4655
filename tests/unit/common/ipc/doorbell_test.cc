#include "common/ipc/doorbell.h"

#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <random>
#include <thread>

#include "common/ipc/memfd.h"
#include "common/mapping.h"
#include "tests/unit/common/child_process.h"

namespace tidegate {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRounds = 20000;

/// One side of a game of ping-pong: it writes its own turn and waits for the other's.
struct Side {
  Doorbell doorbell;
  std::atomic<int> turn;
};

struct Table {
  Side sides[2];
};

void NoPause() {}

/// False when the doorbell was not rung by `deadline` though the turn was made: a lost wake-up.
/// `pause` runs at the worst moment, after the last look at the condition.
template <typename Pause>
bool WaitForTurn(Doorbell& mine, const std::atomic<int>& turn, int round, TimePoint deadline,
                 Pause pause) {
  while (turn.load(std::memory_order_acquire) < round) {
    const std::uint32_t ticket = mine.Arm();
    if (turn.load(std::memory_order_acquire) >= round) {
      mine.Disarm();
      break;
    }
    pause();
    mine.Sleep(ticket, deadline);
    if (SteadyClock().Now() >= deadline) return false;
  }
  return true;
}

/// The number of rounds completed. Pauses of random length move the rings of the other side to all
/// places between arming and sleeping; some give it the processor for that.
int Play(Table& table, int me) {
  const TimePoint deadline = SteadyClock().Now() + seconds(60);
  std::minstd_rand random(static_cast<unsigned>(me) + 1);
  Side& mine = table.sides[me];
  Side& other = table.sides[1 - me];
  const auto pause = [&] {
    const auto length = random() % 256;
    if (length % 16 == 0) std::this_thread::yield();
    for (auto i = length; i > 0; --i) mine.turn.load(std::memory_order_acquire);
  };
  for (int round = 1; round <= kRounds; ++round) {
    pause();
    mine.turn.store(round, std::memory_order_release);
    other.doorbell.Ring();
    if (!WaitForTurn(mine.doorbell, other.turn, round, deadline, pause)) return round - 1;
  }
  return kRounds;
}

TEST(DoorbellTest, NoWakeIsLostBetweenThreads) {
  Table table{};
  int theirs = 0;
  std::thread other([&] { theirs = Play(table, 1); });
  EXPECT_EQ(Play(table, 0), kRounds);
  other.join();
  EXPECT_EQ(theirs, kRounds);
}

TEST(DoorbellTest, NoWakeIsLostBetweenProcesses) {
  const Result<UniqueFd> file = CreateMemfd("doorbell", 4096);
  ASSERT_TRUE(file.ok());
  const Result<Mapping> mapping = Mapping::Map(file.value().get(), 4096);
  ASSERT_TRUE(mapping.ok());
  // As the protocol promises, zeros are a valid state: nothing is constructed.
  Table& table = *std::launder(reinterpret_cast<Table*>(mapping.value().data()));
  ChildProcess child([&] { return Play(table, 1) == kRounds ? 0 : 1; });
  EXPECT_EQ(Play(table, 0), kRounds);
  EXPECT_EQ(child.Wait(), 0);
}

TEST(DoorbellTest, RingWakesAllSleepers) {
  Doorbell doorbell{};
  std::atomic<int> open{0};
  std::atomic<int> lost{0};
  const TimePoint deadline = SteadyClock().Now() + seconds(60);
  const auto wait = [&] {
    if (!WaitForTurn(doorbell, open, 1, deadline, &NoPause)) ++lost;
  };
  std::thread sleepers[] = {std::thread(wait), std::thread(wait), std::thread(wait)};
  open.store(1, std::memory_order_release);
  doorbell.Ring();
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(lost, 0);
}

TEST(DoorbellTest, RingAfterArmingPreventsSleep) {
  Doorbell doorbell{};
  const TimePoint deadline = SteadyClock().Now() + seconds(60);
  const std::uint32_t ticket = doorbell.Arm();
  doorbell.Ring();
  doorbell.Sleep(ticket, deadline);
  EXPECT_LT(SteadyClock().Now(), deadline);
}

TEST(DoorbellTest, RingWithoutSleeperIsNotRemembered) {
  Doorbell doorbell{};
  doorbell.Ring();
  const std::uint32_t ticket = doorbell.Arm();
  doorbell.Disarm();
  doorbell.Ring();
  EXPECT_EQ(doorbell.Arm(), ticket);
  doorbell.Disarm();
}

TEST(DoorbellTest, SleepEndsAtTheDeadline) {
  Doorbell doorbell{};
  const TimePoint deadline = SteadyClock().Now() + milliseconds(20);
  while (SteadyClock().Now() < deadline) doorbell.Sleep(doorbell.Arm(), deadline);
  EXPECT_LT(SteadyClock().Now(), deadline + seconds(20));
}

TEST(DoorbellTest, SurvivesDeathOfAnArmedProcess) {
  const Result<UniqueFd> file = CreateMemfd("doorbell", 4096);
  ASSERT_TRUE(file.ok());
  const Result<Mapping> mapping = Mapping::Map(file.value().get(), 4096);
  ASSERT_TRUE(mapping.ok());
  Doorbell& doorbell = *std::launder(reinterpret_cast<Doorbell*>(mapping.value().data()));
  ChildProcess child([&] {
    doorbell.Arm();
    return 0;
  });
  ASSERT_EQ(child.Wait(), 0);
  const TimePoint deadline = SteadyClock().Now() + seconds(60);
  const std::uint32_t ticket = doorbell.Arm();
  doorbell.Ring();
  doorbell.Sleep(ticket, deadline);
  EXPECT_LT(SteadyClock().Now(), deadline);
}

}  // namespace
}  // namespace tidegate
