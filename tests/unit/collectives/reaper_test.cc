#include "collectives/reaper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tidegate {
namespace {

std::shared_ptr<Operation> Done(std::function<void()> callback) {
  auto operation = std::make_shared<Operation>("all_reduce", 1, nullptr, nullptr);
  operation->OnDone(std::move(callback));
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

TEST(ReaperTest, ACallbackMayWaitForTheNextOne) {
  constexpr int kDepth = 8;
  std::vector<std::promise<void>> ran(kDepth + 1);
  ran[kDepth].set_value();
  Reaper reaper;
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::size_t i = 0; i < kDepth; ++i)
    operations.push_back(Done([&ran, i] {
      ran[i + 1].get_future().wait();
      ran[i].set_value();
    }));
  reaper.Add(&operations);
  ran[0].get_future().wait();
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
  Reaper reaper;
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
