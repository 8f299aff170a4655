#include "collectives/admission/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/unit/common/manual_clock.h"

namespace tidegate {
namespace {

class GateTest : public ::testing::Test {
 protected:
  using Held = std::unique_ptr<Ticket>;
  Held Come(const std::shared_ptr<GateLine>& line, std::uint64_t bytes = 1, bool urgent = false) {
    return std::make_unique<Ticket>(gate_, line, bytes, urgent);
  }

  testing::ManualClock clock_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>(clock_);
  std::shared_ptr<GateLine> a_ = std::make_shared<GateLine>();
  std::shared_ptr<GateLine> b_ = std::make_shared<GateLine>();
  std::shared_ptr<GateLine> c_ = std::make_shared<GateLine>();
};

TEST_F(GateTest, WithoutABudgetAllPass) {
  EXPECT_FALSE(gate_->on());
  std::vector<Held> tickets;
  for (int i = 0; i < 100; ++i) tickets.push_back(Come(a_, 1 << 30));
  for (const Held& ticket : tickets) EXPECT_TRUE(ticket->admitted());
}

TEST_F(GateTest, AsManyAsTheBudgetInTheirOrder) {
  gate_->SetBudget({.ops = 2, .bytes = {}});
  EXPECT_TRUE(gate_->on());
  std::vector<Held> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(Come(a_, 10));
  for (std::size_t left = 0; left < 5; ++left) {
    for (std::size_t i = left; i < 5; ++i)
      EXPECT_EQ(tickets[i]->admitted(), i < left + 2) << left << i;
    clock_.Advance(Nanoseconds(100));
    tickets[left]->Leave();
    tickets[left]->Leave();  // Twice makes no more room.
  }
  const Gate::Counters counters = gate_->counters();
  EXPECT_EQ(counters.high_water_ops, 2U);
  EXPECT_EQ(counters.high_water_bytes, 20U);
  EXPECT_EQ(counters.waits, 3U);
  EXPECT_EQ(counters.held, Nanoseconds(100 + 200 + 300));
  EXPECT_EQ(counters.promotions, 0U);
}

TEST_F(GateTest, BytesCountAsOperationsDo) {
  gate_->SetBudget({.ops = {}, .bytes = 100});
  const Held first = Come(a_, 60);
  const Held fits = Come(a_, 40);
  const Held does_not = Come(a_, 1);
  EXPECT_TRUE(first->admitted() && fits->admitted());
  EXPECT_FALSE(does_not->admitted());
  EXPECT_EQ(gate_->counters().high_water_bytes, 100U);
}

TEST_F(GateTest, WhatIsLargerThanTheBudgetPassesAlone) {
  gate_->SetBudget({.ops = {}, .bytes = 100});
  Held small = Come(a_, 1);
  const Held large = Come(a_, 1000);
  const Held after = Come(a_, 1);
  EXPECT_FALSE(large->admitted());
  small.reset();
  EXPECT_TRUE(large->admitted());
  EXPECT_FALSE(after->admitted());
  large->Leave();
  EXPECT_TRUE(after->admitted());
}

TEST_F(GateTest, TheOldestOfALineAlwaysPasses) {
  gate_->SetBudget({.ops = 1, .bytes = 1});
  const Held a = Come(a_, 7);
  const Held a_next = Come(a_, 7);
  const Held b = Come(b_, 7);
  const Held c = Come(c_, 7);
  EXPECT_TRUE(a->admitted() && b->admitted() && c->admitted());
  EXPECT_FALSE(a_next->admitted());
  EXPECT_EQ(gate_->counters().high_water_ops, 3U);
  EXPECT_EQ(gate_->counters().promotions, 0U);
  a->Leave();
  EXPECT_TRUE(a_next->admitted());
}

// A large one waits for no more than what was admitted before it, however many small ones come.
TEST_F(GateTest, NothingStarves) {
  gate_->SetBudget({.ops = {}, .bytes = 10});
  std::vector<Held> small;
  small.push_back(Come(a_, 5));
  small.push_back(Come(b_, 5));
  Held held_b = Come(b_, 1);
  const Held large = Come(a_, 10);
  for (int i = 0; i < 20; ++i) {
    small.push_back(Come(a_, 1));
    small.push_back(Come(b_, 1));
    EXPECT_FALSE(small.back()->admitted());
  }
  small[0]->Leave();  // Line a has none in flight now, so its oldest passes over budget.
  EXPECT_TRUE(large->admitted());
  EXPECT_TRUE(held_b->admitted());  // It came before.
  for (std::size_t i = 2; i < small.size(); ++i) EXPECT_FALSE(small[i]->admitted()) << i;
}

TEST_F(GateTest, AcrossLinesFirstComeFirstServed) {
  gate_->SetBudget({.ops = 3, .bytes = {}});
  const Held a = Come(a_);
  const Held b = Come(b_);
  const Held c = Come(c_);
  const Held b_next = Come(b_);
  const Held a_next = Come(a_);
  c->Leave();
  EXPECT_TRUE(b_next->admitted());
  EXPECT_FALSE(a_next->admitted());
  b->Leave();
  EXPECT_TRUE(a_next->admitted());
}

TEST_F(GateTest, APromotedOnePassesWithAllBeforeItInItsLine) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held a = Come(a_);
  const Held b = Come(b_);
  std::vector<Held> held;
  for (int i = 0; i < 4; ++i) held.push_back(Come(i == 1 ? b_ : a_));
  held[2]->Promote();
  EXPECT_TRUE(held[0]->admitted() && held[2]->admitted());
  EXPECT_FALSE(held[1]->admitted() || held[3]->admitted());
  EXPECT_EQ(gate_->counters().promotions, 2U);
  held[2]->Promote();
  EXPECT_EQ(gate_->counters().promotions, 2U);
  const Held urgent = Come(b_, 1, /*urgent=*/true);
  EXPECT_TRUE(urgent->admitted() && held[1]->admitted());
  EXPECT_EQ(gate_->counters().promotions, 4U);
  EXPECT_EQ(gate_->counters().high_water_ops, 6U);
}

TEST_F(GateTest, AWiderBudgetAdmitsAtOnceAndBeginsANewHighWaterMark) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held a = Come(a_);
  const Held next = Come(a_);
  const Held last = Come(a_);
  gate_->SetBudget({.ops = 2, .bytes = {}});
  EXPECT_TRUE(next->admitted());
  EXPECT_FALSE(last->admitted());
  EXPECT_EQ(gate_->counters().high_water_ops, 2U);
  gate_->SetBudget({});
  EXPECT_TRUE(last->admitted());
  a->Leave();
  next->Leave();
  gate_->SetBudget({.ops = 1, .bytes = {}});
  EXPECT_EQ(gate_->counters().high_water_ops, 1U);
}

TEST_F(GateTest, OneThatGoesWithoutHavingPassedMakesWay) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held a = Come(a_);
  Held gone = Come(a_);
  const Held next = Come(a_);
  gone.reset();
  a->Leave();
  EXPECT_TRUE(next->admitted());
}

TEST_F(GateTest, AThreadWaitsForRoom) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held a = Come(a_);
  const Held next = Come(a_);
  std::thread leaves([&] { a->Leave(); });
  next->WaitForRoom(SteadyClock(), kNoDeadline, std::chrono::hours(1), [] { return false; });
  EXPECT_TRUE(next->admitted());
  EXPECT_EQ(gate_->counters().promotions, 0U);
  leaves.join();
}

TEST_F(GateTest, AThreadThatIsKeptTooLongPassesOverBudget) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held a = Come(a_);
  const auto wait = [&](TimePoint deadline, Nanoseconds patience, bool gives_up) {
    const Held next = Come(a_);
    EXPECT_FALSE(next->admitted());
    next->WaitForRoom(SteadyClock(), deadline, patience, [&] { return gives_up; });
    EXPECT_TRUE(next->admitted());
  };
  wait(kNoDeadline, std::chrono::milliseconds(1), false);
  wait(SteadyClock().Now() + std::chrono::milliseconds(1), std::chrono::hours(1), false);
  wait(kNoDeadline, std::chrono::hours(1), true);
  EXPECT_EQ(gate_->counters().promotions, 3U);
}

// However much comes and goes after it, a thread is kept by what was in flight when it came, or not
// at all.
TEST_F(GateTest, TrafficOfOthersDoesNotProlongPatience) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held stuck = Come(a_);
  const Held next = Come(a_);
  std::atomic<bool> over{false};
  std::thread traffic([&] {
    while (!over) Come(b_)->Leave();
  });
  next->WaitForRoom(SteadyClock(), kNoDeadline, std::chrono::milliseconds(100),
                    [] { return false; });
  EXPECT_TRUE(next->admitted());
  over = true;
  traffic.join();
}

TEST_F(GateTest, WhatGetsOnIsWaitedForLonger) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held slow = Come(a_);
  const Held next = Come(a_);
  int looks = 0;
  next->WaitForRoom(SteadyClock(), kNoDeadline, Ticket::kLookAround / 2, [&] {
    if (++looks <= 20) slow->GetsOn();
    return false;
  });
  EXPECT_GT(looks, 20);
  EXPECT_EQ(gate_->counters().promotions, 1U);
}

TEST_F(GateTest, AThreadThatWaitsForRoomIsLetThroughWhenLimitsAreLifted) {
  gate_->SetBudget({.ops = 1, .bytes = {}});
  const Held a = Come(a_);
  const Held next = Come(a_);
  std::thread lifts([&] { gate_->SetBudget({}); });
  next->WaitForRoom(SteadyClock(), kNoDeadline, std::chrono::hours(1), [] { return false; });
  EXPECT_EQ(gate_->counters().promotions, 0U);
  lifts.join();
}

TEST_F(GateTest, ManyThreadsAtOnce) {
  constexpr std::uint64_t kMost = 3;
  gate_->SetBudget({.ops = kMost, .bytes = {}});
  std::atomic<std::uint64_t> in_flight{0};
  std::atomic<std::uint64_t> most{0};
  const Held anchor = Come(a_);  // Line a's oldest, so that no other is.
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        const Held mine = Come(a_);
        mine->WaitForRoom(SteadyClock(), kNoDeadline, std::chrono::hours(1), [] { return false; });
        const std::uint64_t now = ++in_flight;
        std::uint64_t seen = most.load();
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
        --in_flight;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), kMost - 1);
  EXPECT_LE(gate_->counters().high_water_ops, kMost);
}

}  // namespace
}  // namespace tidegate
