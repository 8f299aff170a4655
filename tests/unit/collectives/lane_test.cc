#include "collectives/lane.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "collectives/call_book.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/algorithm_table.h"
#include "tests/unit/common/manual_clock.h"

namespace tidegate {
namespace {

constexpr std::size_t kStageBytes = 16384;
constexpr std::size_t kLongBytes = std::size_t{1} << 20;  // Hundreds of chunks of such a stage.

/// Two lanes of a group of one rank, whose operations never wait for a peer: all that stops a lane
/// is its turn.
class LaneTest : public ::testing::Test {
 protected:
  LaneTest()
      : loopback_(std::make_shared<LoopbackGroup>(1, kStageBytes)),
        context_("test",
                 Attachment{.transport = {loopback_, &loopback_->transport(0)},
                            .doorbell = std::make_shared<Doorbell>(),
                            .max_sleep = [] { return Nanoseconds(1000); },
                            .ranks_per_cpu = [] { return 1; },
                            .plans = testing::AlgorithmTable::Default().ForGroup(1)},
                 std::make_shared<GroupStatistics>(), std::make_shared<GroupAdmission>()),
        calls_(context_.plans(), 0, kStageBytes),
        gathers_(context_, 0, SteadyClock()),
        reductions_(context_, 1, SteadyClock()) {}

  Task TaskOf(Collective collective, std::size_t bytes) {
    memory_.emplace_back(2 * bytes, std::byte{7});
    std::byte* const data = memory_.back().data();
    CollectiveRequest request{
        .collective = collective, .inputs = {{data, bytes}}, .outputs = {{data + bytes, bytes}}};
    if (Reduces(collective)) request.reduce_op = ReduceOp::kSum;
    Task task;
    task.requests.push_back(request);
    EXPECT_TRUE(calls_.Make(task.requests, ++sequence_, &task.calls).ok());
    task.operation = std::make_shared<Operation>(NameOf(collective), sequence_);
    return task;
  }

  std::shared_ptr<Operation> Queue(Lane& lane, Collective collective, std::size_t bytes) {
    auto task = std::make_shared<Task>(TaskOf(collective, bytes));
    std::shared_ptr<Operation> operation = task->operation;
    lane.Queue(std::move(task));
    return operation;
  }

  std::shared_ptr<LoopbackGroup> loopback_;
  GroupContext context_;
  CallBook calls_;
  Lane gathers_;
  Lane reductions_;
  std::vector<std::vector<std::byte>> memory_;
  std::uint64_t sequence_ = 0;
  FinishedOperations finished_;
};

TEST_F(LaneTest, APrefetchedAllGatherIsLeftToTheOtherTurn) {
  const auto gather = Queue(gathers_, Collective::kAllGather, 100);
  const DriveResult urgent = gathers_.Drive(&finished_, Turn::kUrgent);
  EXPECT_TRUE(urgent.pending && urgent.deferred);
  EXPECT_FALSE(urgent.progressed || gather->done());
  const DriveResult other = gathers_.Drive(&finished_, Turn::kPrefetched);
  EXPECT_TRUE(other.progressed && gather->done());
  EXPECT_FALSE(other.pending || other.deferred);
}

TEST_F(LaneTest, AllElseIsUrgent) {
  const auto exchange = Queue(gathers_, Collective::kAllToAll, 100);
  const auto gather = Queue(gathers_, Collective::kAllGather, 100);
  const DriveResult result = gathers_.Drive(&finished_, Turn::kUrgent);
  EXPECT_TRUE(exchange->done() && result.deferred);
  EXPECT_FALSE(gather->done());
  const auto sum = Queue(reductions_, Collective::kReduceScatter, 100);
  EXPECT_FALSE(reductions_.Drive(&finished_, Turn::kUrgent).deferred);
  EXPECT_TRUE(sum->done());
}

TEST_F(LaneTest, WhatSomebodyWaitsForIsUrgent) {
  const auto gather = Queue(gathers_, Collective::kAllGather, 100);
  std::thread waiter([&] { EXPECT_TRUE(gather->Wait(Nanoseconds(0)).ok()); });
  while (!gather->awaited()) std::this_thread::yield();
  EXPECT_FALSE(gathers_.Drive(&finished_, Turn::kUrgent).deferred);
  EXPECT_TRUE(gather->done());
  waiter.join();
}

// A turn is a few steps, so a reduction begun in the middle of a long all-gather is done in the
// round in which it is found.
TEST_F(LaneTest, AReductionWaitsForNoMoreThanOneTurnOfALongAllGather) {
  const auto gather = Queue(gathers_, Collective::kAllGather, kLongBytes);
  const DriveResult first = gathers_.Drive(&finished_, Turn::kPrefetched);
  EXPECT_TRUE(first.progressed && first.pending);
  const auto sum = Queue(reductions_, Collective::kReduceScatter, 100);
  reductions_.Drive(&finished_, Turn::kUrgent);
  EXPECT_TRUE(sum->done());
  EXPECT_FALSE(gather->done());
  int turns = 1;
  while (!gather->done()) {
    EXPECT_TRUE(gathers_.Drive(&finished_, Turn::kPrefetched).progressed);
    ++turns;
  }
  EXPECT_GT(turns, 10);
  EXPECT_EQ(memory_[0], std::vector<std::byte>(2 * kLongBytes, std::byte{7}));
}

// Nothing starves: however many reductions come, a round has a turn for all-gathers, and the turn
// of reductions ends.
TEST_F(LaneTest, ReductionsDoNotKeepAllGathersFromTheirTurn) {
  const auto gather = Queue(gathers_, Collective::kAllGather, kLongBytes);
  const auto sum = Queue(reductions_, Collective::kReduceScatter, 64 * kLongBytes);
  for (int round = 0; !gather->done(); ++round) {
    ASSERT_LT(round, 1000);
    EXPECT_TRUE(reductions_.Drive(&finished_, Turn::kUrgent).pending);
    EXPECT_TRUE(gathers_.Drive(&finished_, Turn::kPrefetched).progressed);
  }
  EXPECT_FALSE(sum->done());
}

TEST_F(LaneTest, WhatSomebodyWaitsForTakesWhatIsBeforeItAlong) {
  const auto first = Queue(gathers_, Collective::kAllGather, 100);
  const auto wanted = Queue(gathers_, Collective::kAllGather, 100);
  wanted->Want();
  EXPECT_FALSE(gathers_.Drive(&finished_, Turn::kUrgent).deferred);
  EXPECT_TRUE(first->done() && wanted->done());
}

TEST_F(LaneTest, CoalescedOnesShareATurn) {
  constexpr std::size_t kCalls = 200;
  memory_.emplace_back(128 * kCalls, std::byte{7});
  auto task = std::make_shared<Task>();
  for (std::size_t i = 0; i < kCalls; ++i) {
    std::byte* const data = memory_.back().data() + 128 * i;
    task->requests.push_back({.collective = Collective::kAllGather,
                              .inputs = {{data, 64}},
                              .outputs = {{data + 64, 64}}});
  }
  EXPECT_TRUE(calls_.Make(task->requests, 1, &task->calls).ok());
  task->operation = std::make_shared<Operation>("all_gather", 1);
  const std::shared_ptr<Operation> operation = task->operation;
  gathers_.Queue(std::move(task));
  int turns = 0;
  for (; !operation->done(); ++turns)
    EXPECT_TRUE(gathers_.Drive(&finished_, Turn::kPrefetched).progressed);
  EXPECT_GT(turns, 10);
}

TEST_F(LaneTest, ManySmallOnesShareATurn) {
  std::vector<std::shared_ptr<Operation>> gathers;
  for (int i = 0; i < 50; ++i) gathers.push_back(Queue(gathers_, Collective::kAllGather, 64));
  const DriveResult first = gathers_.Drive(&finished_, Turn::kPrefetched);
  EXPECT_TRUE(first.pending && gathers[0]->done());
  EXPECT_GT(finished_.size(), 1U);
  EXPECT_FALSE(gathers.back()->done());
  while (gathers_.Drive(&finished_, Turn::kPrefetched).pending) {
  }
  EXPECT_TRUE(gathers.back()->done());
  EXPECT_EQ(finished_.size(), 50U);
}

TEST_F(LaneTest, WhatIsQueuedBehindACallOfThisThreadCanBeEnded) {
  // This thread takes the lane, as a call does whose signal handler runs.
  Task call = TaskOf(Collective::kAllToAll, 100);
  ASSERT_TRUE(gathers_.Take(call));
  ASSERT_TRUE(gathers_.TakenByThisThread());
  std::vector<std::shared_ptr<Operation>> behind;
  for (int i = 0; i < 3; ++i) behind.push_back(Queue(gathers_, Collective::kAllGather, 64));
  EXPECT_FALSE(gathers_.Drive(&finished_, Turn::kPrefetched).progressed);
  context_.Fail(StatusCode::kAborted, 0, "shut down");
  gathers_.EndQueued(&finished_);
  EXPECT_EQ(finished_, behind);
  for (const auto& operation : behind)
    EXPECT_EQ(operation->status().code(), StatusCode::kAborted) << operation->status().message();
  EXPECT_FALSE(gathers_.Idle()) << "The call has yet to return.";
  EXPECT_FALSE(gathers_.Run(call)) << "Nothing is left for another thread.";
  EXPECT_EQ(call.operation->status().code(), StatusCode::kAborted);
  EXPECT_TRUE(gathers_.Idle());
}

TEST(TaskTest, ItsDeadlineCountsFromTheFirstLookAtTheClock) {
  testing::ManualClock clock;
  const TimePoint first = clock.Now();
  Task task;
  task.timeout = std::chrono::seconds(2);
  task.LookAtClock(clock);
  EXPECT_EQ(task.begun, first);
  EXPECT_EQ(task.deadline, first + std::chrono::seconds(2));
  clock.Advance(std::chrono::seconds(1));
  task.LookAtClock(clock);
  EXPECT_EQ(task.begun, first);
  EXPECT_EQ(task.deadline, first + std::chrono::seconds(2));
}

TEST(TaskTest, WithoutATimeoutItHasNoDeadline) {
  testing::ManualClock clock;
  for (const Nanoseconds timeout : {Nanoseconds(0), Nanoseconds::max()}) {
    Task task;
    task.timeout = timeout;
    task.LookAtClock(clock);
    EXPECT_EQ(task.deadline, kNoDeadline);
  }
}

}  // namespace
}  // namespace tidegate
