#include "collectives/reaper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tidegate {
namespace {

std::shared_ptr<Operation> Done(std::function<void()> callback) {
  auto operation = std::make_shared<Operation>("all_reduce", 1);
  Operation::OnDone(operation, std::move(callback));
  operation->Complete(Status());
  return operation;
}

TEST(ReaperTest, RunsEveryCallbackOnceBeforeItEnds) {
  std::vector<std::atomic<int>> runs(100);
  {
    Reaper reaper;
    for (std::atomic<int>& count : runs) {
      std::vector<std::shared_ptr<Operation>> one = {Done([&count] { ++count; })};
      reaper.Add(&one);
      EXPECT_TRUE(one.empty());
    }
  }
  for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
}

/// Short, so that tests are: a callback is begun ahead of its turn after a tenth of it.
constexpr std::chrono::milliseconds kPatience{50};

TEST(ReaperTest, ManyCallbacksMayWaitForTheNextOne) {
  constexpr int kDepth = 40;
  std::vector<std::promise<void>> ran(kDepth + 1);
  ran[kDepth].set_value();
  Reaper reaper(kPatience);
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::size_t i = 0; i < kDepth; ++i)
    operations.push_back(Done([&ran, i] {
      ran[i + 1].get_future().wait();
      ran[i].set_value();
    }));
  reaper.Add(&operations);
  ran[0].get_future().wait();
}

/// Hands over one operation.
void AddOne(Reaper* reaper, std::shared_ptr<Operation> operation) {
  std::vector<std::shared_ptr<Operation>> one = {std::move(operation)};
  reaper->Add(&one);
}

/// As a future does: `publish` wakes those who wait, `user_code` runs in its turn.
std::shared_ptr<Operation> Published(std::function<void()> publish,
                                     std::function<void()> user_code) {
  return Done([publish = std::move(publish), user_code = std::move(user_code)] {
    publish();
    Reaper::AwaitTurn();
    user_code();
  });
}

TEST(ReaperTest, UserCodeKeepsTheOrderOfCompletionWhateverItTakes) {
  std::vector<int> order;  // Not guarded: one callback runs at a time.
  std::promise<void> all_published;
  std::atomic<int> published{0};
  constexpr int kCount = 10;
  {
    Reaper reaper(kPatience);
    std::vector<std::shared_ptr<Operation>> operations;
    for (int i = 0; i < kCount; ++i)
      operations.push_back(Published(
          [&] {
            if (++published == kCount) all_published.set_value();
          },
          [&, i] {
            // The first one computes until the others have begun, which is well ahead of theirs.
            while (i == 0 && published < kCount) {
            }
            order.push_back(i);
          }));
    reaper.Add(&operations);
    all_published.get_future().wait();
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(ReaperTest, WhatHasNoCallbackWaitsForNone) {
  std::promise<void> dropped;
  std::promise<void> seen;
  Reaper reaper(std::chrono::hours(1));
  AddOne(&reaper, Done([&] { seen.get_future().wait(); }));
  auto plain = std::make_shared<Operation>("all_reduce", 2);
  plain->Hold(std::shared_ptr<void>(nullptr, [&](void*) { dropped.set_value(); }),
              std::weak_ptr<Communicator>());
  plain->Complete(Status());
  AddOne(&reaper, std::move(plain));
  dropped.get_future().wait();
  seen.set_value();
}

TEST(ReaperTest, MoreCallbacksThanThreadsWaitForWhatTheyStarted) {
  constexpr std::size_t kCount = Reaper::kMostThreads + 50;
  std::atomic<std::size_t> finished{0};
  {
    Reaper reaper(std::chrono::hours(1));  // Patience has no part in it.
    std::vector<std::shared_ptr<Operation>> operations;
    for (std::size_t i = 0; i < kCount; ++i)
      operations.push_back(Done([&] {
        std::promise<void> inner;
        AddOne(&reaper, Published([&] { inner.set_value(); }, [&] { ++finished; }));
        inner.get_future().wait();
        ++finished;
      }));
    reaper.Add(&operations);
  }
  EXPECT_EQ(finished, 2 * kCount);
}

TEST(ReaperTest, ACallbackThatWaitsForUserCodeBehindItLosesItsTurn) {
  std::promise<void> second;
  Reaper reaper(kPatience);
  AddOne(&reaper, Published([] {}, [&] { second.get_future().wait(); }));
  AddOne(&reaper, Published([] {}, [&] { second.set_value(); }));
}

TEST(ReaperTest, ACallbackSetLateComesAfterTheEarlierOnes) {
  std::vector<int> order;  // Not guarded: one callback runs at a time.
  std::promise<void> begun;
  std::promise<void> go_on;
  {
    Reaper reaper(std::chrono::hours(1));
    auto first = Done([&] {
      begun.set_value();
      go_on.get_future().wait();
      order.push_back(1);
    });
    AddOne(&reaper, first);
    begun.get_future().wait();
    EXPECT_TRUE(reaper.AddLate(Done([&] { order.push_back(2); })));
    go_on.set_value();
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  Reaper idle;
  EXPECT_FALSE(idle.AddLate(Done([&] { order.push_back(3); })));
  EXPECT_EQ(order.size(), 2U);
}

std::size_t ReaperThreads() {
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name == "tidegate-reap" ? 1 : 0;
  }
  return count;
}

TEST(ReaperTest, ThreadsThatAreNoLongerNeededEnd) {
  const std::size_t of_others = ReaperThreads();  // The process has a reaper of its own.
  Reaper reaper(kPatience);
  for (int round = 0; round < 3; ++round) {
    constexpr std::size_t kDepth = 6;
    std::vector<std::promise<void>> ran(kDepth + 1);
    ran[kDepth].set_value();
    std::vector<std::shared_ptr<Operation>> operations;
    for (std::size_t i = 0; i < kDepth; ++i)
      operations.push_back(Done([&ran, i] {
        ran[i + 1].get_future().wait();
        ran[i].set_value();
      }));
    reaper.Add(&operations);
    ran[0].get_future().wait();
    while (ReaperThreads() > of_others + Reaper::kMostIdleThreads) std::this_thread::yield();
  }
}

TEST(ReaperTest, WhatIsStartedWithinACallbackIsReapedToo) {
  std::promise<void> inner;
  Reaper reaper;
  std::vector<std::shared_ptr<Operation>> outer = {Done([&] {
    std::vector<std::shared_ptr<Operation>> more = {Done([&inner] { inner.set_value(); })};
    reaper.Add(&more);
    inner.get_future().wait();
  })};
  reaper.Add(&outer);
}

}  // namespace
}  // namespace tidegate
