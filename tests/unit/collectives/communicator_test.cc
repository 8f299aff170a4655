#include "collectives/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "tests/unit/collectives/support/collective_case.h"
#include "tests/unit/collectives/support/example_algorithm.h"
#include "tests/unit/collectives/support/local_group.h"

namespace tidegate {
namespace {

using testing::AllCases;
using testing::Barrier;
using testing::BlockOf;
using testing::CaseMemory;
using testing::CollectiveCase;
using testing::LocalGroup;
using testing::SumOf;
using namespace std::chrono_literals;

constexpr int kChunkElements = 1024;

class CommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorTest, RunsEveryCollectiveSyncAndAsync) {
  const int ranks = GetParam();
  for (const bool async : {false, true}) {
    LocalGroup group(ranks);
    const std::vector<CollectiveCase> cases = AllCases(ranks, kChunkElements, async ? 7 : 3);
    std::vector<CaseMemory> memory(cases.begin(), cases.end());
    group.RunAll([&](int rank, Communicator& communicator) {
      std::vector<std::shared_ptr<Operation>> operations;
      for (CaseMemory& one : memory)
        operations.push_back(communicator.Submit({one.RequestFor(rank)}, {.async = async}));
      for (const auto& operation : operations) {
        const Status status = operation->Wait(Nanoseconds(0));
        EXPECT_TRUE(status.ok()) << status.message();
      }
    });
    for (const CaseMemory& one : memory) EXPECT_EQ(one.FirstError(), "");
  }
}

class PointToPointTest : public ::testing::TestWithParam<int> {};

TEST_P(PointToPointTest, SendsAndReceivesInAnyOrderOfTags) {
  const int ranks = GetParam();
  constexpr int kTags = 100;  // More than a channel announces at once.
  LocalGroup group(ranks);
  group.RunAll([&](int rank, Communicator& communicator) {
    const int next = (rank + 1) % ranks;
    const int previous = (rank + ranks - 1) % ranks;
    std::vector<std::vector<std::int32_t>> sent, received;
    for (int tag = 0; tag < kTags; ++tag) {
      const auto count = static_cast<std::size_t>(tag == 50 ? 200'003 : tag);
      sent.push_back(std::vector<std::int32_t>(count, rank * 1000 + tag));
      received.push_back(std::vector<std::int32_t>(count, -1));
    }
    std::vector<std::shared_ptr<Operation>> operations;
    for (int tag = 0; tag < kTags; ++tag)
      operations.push_back(communicator.Send(BlockOf(sent[static_cast<std::size_t>(tag)]),
                                             DataType::kInt32, next, tag, {}));
    for (int tag = kTags - 1; tag >= 0; --tag)
      operations.push_back(communicator.Receive(BlockOf(received[static_cast<std::size_t>(tag)]),
                                                DataType::kInt32, previous, tag, {}));
    for (const auto& operation : operations) {
      const Status status = operation->Wait(Nanoseconds(0));
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (int tag = 0; tag < kTags; ++tag)
      for (const std::int32_t value : received[static_cast<std::size_t>(tag)])
        ASSERT_EQ(value, previous * 1000 + tag);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorTest, ::testing::Values(1, 2, 3, 4, 5, 8));
INSTANTIATE_TEST_SUITE_P(Ranks, PointToPointTest, ::testing::Values(2, 3, 4, 5, 8));

TEST(AlgorithmRegistrationTest, ANewAlgorithmRunsOnTheSameExecutor) {
  testing::AlgorithmTable table = testing::AlgorithmTable::Default();
  table.Clear(Collective::kAllGather);
  table.Add(Collective::kAllGather, std::size_t{1} << 40, AllGatherBothWays);
  for (const int ranks : {1, 2, 3, 4, 5}) {
    LocalGroup group(ranks, 60s, table);
    CaseMemory memory({Collective::kAllGather, ReduceOp::kNone, ranks, -1,
                       std::vector<int>(static_cast<std::size_t>(ranks), 3000), 4});
    group.RunAll([&](int rank, Communicator& communicator) {
      const auto operation = communicator.Submit({memory.RequestFor(rank)}, {.async = false});
      EXPECT_TRUE(operation->status().ok()) << operation->status().message();
    });
    EXPECT_EQ(memory.FirstError(), "") << ranks << " ranks";
  }
}

TEST(AlgorithmRegistrationTest, WhatFailsItsVerificationIsNotRun) {
  testing::AlgorithmTable table = testing::AlgorithmTable::Default();
  table.Clear(Collective::kAllGather);
  table.Add(Collective::kAllGather, std::size_t{1} << 40, [](const AlgorithmInput& input) {
    Schedule schedule = FindAlgorithm(Collective::kAllGather, "direct")->build(input);
    schedule.name = "hasty";
    std::erase_if(schedule.steps, [](const Step& step) {
      return step.kind == StepKind::kWait && step.wait_offset == 0;
    });
    return schedule;
  });
  LocalGroup group(2, 60s, table);
  CaseMemory memory({Collective::kAllGather, ReduceOp::kNone, 2, -1, {300, 300}, 4});
  group.RunAll([&](int rank, Communicator& communicator) {
    const auto operation = communicator.Submit({memory.RequestFor(rank)}, {.async = false});
    EXPECT_EQ(operation->status().code(), StatusCode::kInternal);
    EXPECT_THAT(
        operation->status().message(),
        ::testing::HasSubstr(
            "algorithm hasty failed its verification and is not run: all_gather hasty rank "));
  });
}

TEST(CommunicatorFailureTest, AMissingRankIsNamedAtTheDeadline) {
  LocalGroup group(3, 200ms);
  group.RunAll([](int rank, Communicator& communicator) {
    if (rank == 1) return;
    const auto operation = communicator.Submit({Barrier()}, {.async = rank == 0});
    const Status status = operation->Wait(Nanoseconds(0));
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_NE(status.message().find("missing: rank 1"), std::string::npos) << status.message();
  });
}

TEST(CommunicatorFailureTest, AWrongRequestFailsHereAndAtThePeers) {
  LocalGroup group(2);
  group.RunAll([](int rank, Communicator& communicator) {
    std::vector<std::int32_t> values(4), fewer(3);
    CollectiveRequest request = SumOf(values);
    if (rank == 1) request.outputs = {BlockOf(fewer)};
    const auto operation = communicator.Submit({request}, {.async = false});
    EXPECT_EQ(operation->status().code(),
              rank == 1 ? StatusCode::kInvalidArgument : StatusCode::kMismatch)
        << operation->status().message();
  });
}

TEST(CommunicatorFailureTest, TheSameWrongRequestEverywhereLeavesTheGroupUsable) {
  LocalGroup group(2);
  group.RunAll([](int rank, Communicator& communicator) {
    std::vector<std::int32_t> values(4, rank + 1);
    CollectiveRequest wrong = SumOf(values);
    wrong.inputs.clear();
    EXPECT_EQ(communicator.Submit({wrong}, {.async = false})->status().code(),
              StatusCode::kInvalidArgument);
    const auto operation = communicator.Submit({SumOf(values)}, {.async = false});
    EXPECT_TRUE(operation->status().ok()) << operation->status().message();
    EXPECT_EQ(values, std::vector<std::int32_t>(4, 3));
  });
}

TEST(CommunicatorFailureTest, AbortWakesThisRankAndItsPeers) {
  LocalGroup group(2);
  const auto waiting = group[0].Submit({Barrier()}, {.async = true});
  std::vector<std::int32_t> values(4);
  const auto receiving = group[0].Receive(BlockOf(values), DataType::kInt32, 1, 0, {});
  group[0].Abort("the test says so");
  EXPECT_EQ(waiting->Wait(Nanoseconds(0)).code(), StatusCode::kAborted);
  EXPECT_EQ(receiving->Wait(Nanoseconds(0)).code(), StatusCode::kAborted);
  const auto later = group[1].Submit({Barrier()}, {.async = false});
  EXPECT_EQ(later->status().code(), StatusCode::kAborted);
  EXPECT_NE(later->status().message().find("the test says so"), std::string::npos);
}

TEST(CommunicatorFailureTest, ARankThatLeftIsNamed) {
  LocalGroup group(2);
  std::vector<std::int32_t> values(4);
  group.RunAll([](int, Communicator& communicator) {
    EXPECT_TRUE(communicator.Submit({Barrier()}, {.async = false})->status().ok());
  });
  group[1].Shutdown();
  const auto operation = group[0].Submit({Barrier()}, {.async = false});
  EXPECT_EQ(operation->status().code(), StatusCode::kPeerLost);
  EXPECT_NE(operation->status().message().find("rank 1"), std::string::npos);
  EXPECT_EQ(group[1].Submit({Barrier()}, {.async = false})->status().code(), StatusCode::kAborted);
}

TEST(CommunicatorProgressTest, GroupsUsedInOppositeOrderComplete) {
  LocalGroup first(2), second(2);
  std::thread other([&] {
    const auto b = second[1].Submit({Barrier()}, {.async = true});
    const auto a = first[1].Submit({Barrier()}, {.async = true});
    EXPECT_TRUE(b->Wait(Nanoseconds(0)).ok());
    EXPECT_TRUE(a->Wait(Nanoseconds(0)).ok());
  });
  const auto a = first[0].Submit({Barrier()}, {.async = true});
  const auto b = second[0].Submit({Barrier()}, {.async = true});
  EXPECT_TRUE(a->Wait(Nanoseconds(0)).ok());
  EXPECT_TRUE(b->Wait(Nanoseconds(0)).ok());
  other.join();
}

TEST(CommunicatorProgressTest, LanesProgressIndependently) {
  LocalGroup group(2);
  std::vector<std::int32_t> mine(10, 1), theirs(10, 2), all(20);
  CollectiveRequest gather{.collective = Collective::kAllGather,
                           .dtype = DataType::kInt32,
                           .inputs = {BlockOf(mine)},
                           .outputs = {{BlockOf(all).data, 40}, {BlockOf(all).data + 40, 40}}};
  std::vector<std::int32_t> sum0(5, 1), sum1(5, 2);
  // Rank 0 has issued the gather, rank 1 has not; the reduction after it completes all the same.
  const auto gathering = group[0].Submit({gather}, {.async = true});
  const auto reducing = group[0].Submit({SumOf(sum0)}, {.async = true});
  Communicator& peer = group[1];
  CollectiveRequest peer_gather = gather;
  std::vector<std::int32_t> peer_all(20);
  peer_gather.inputs = {BlockOf(theirs)};
  peer_gather.outputs = {{BlockOf(peer_all).data, 40}, {BlockOf(peer_all).data + 40, 40}};
  // The peer's gather must wait for the sum that writes its input.
  const auto peer_gathering = peer.Submit({peer_gather}, {.async = true});
  const auto peer_reducing = peer.Submit({SumOf(sum1)}, {.async = true});
  EXPECT_TRUE(reducing->Wait(Nanoseconds(0)).ok());
  EXPECT_TRUE(peer_reducing->Wait(Nanoseconds(0)).ok());
  EXPECT_TRUE(gathering->Wait(Nanoseconds(0)).ok());
  EXPECT_TRUE(peer_gathering->Wait(Nanoseconds(0)).ok());
  EXPECT_EQ(sum0, std::vector<std::int32_t>(5, 3));
  EXPECT_EQ(all[19], 2);
}

TEST(CommunicatorProgressTest, AnOverlappingOperationOfTheOtherLaneRunsAfter) {
  LocalGroup group(2);
  group.RunAll([](int rank, Communicator& communicator) {
    std::vector<std::int32_t> values(5000, rank + 1), all(10000);
    const auto sum = communicator.Submit({SumOf(values)}, {.async = true});
    CollectiveRequest gather{
        .collective = Collective::kAllGather,
        .dtype = DataType::kInt32,
        .inputs = {BlockOf(values)},
        .outputs = {{BlockOf(all).data, 20000}, {BlockOf(all).data + 20000, 20000}}};
    const auto gathered = communicator.Submit({gather}, {.async = true});
    EXPECT_TRUE(gathered->Wait(Nanoseconds(0)).ok());
    EXPECT_EQ(all, std::vector<std::int32_t>(10000, 3));
    EXPECT_TRUE(sum->done());
  });
}

TEST(CommunicatorProgressTest, BuffersLiveUntilDoneAndNoLonger) {
  LocalGroup group(2);
  auto buffers = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = buffers;
  auto dropped = group[0].Submit({Barrier()}, {.async = true, .keepalive = std::move(buffers)});
  dropped.reset();
  EXPECT_FALSE(alive.expired());
  const auto peer = group[1].Submit({Barrier()}, {.async = true});
  EXPECT_TRUE(peer->Wait(Nanoseconds(0)).ok());
  ShutdownProcess();  // Joins the thread that drops them.
  EXPECT_TRUE(alive.expired());
}

TEST(CommunicatorProgressTest, CallbacksRunOnceOffTheProgressThread) {
  LocalGroup group(2);
  std::atomic<int> calls{0};
  const auto operation = group[0].Submit({Barrier()}, {.async = true});
  Operation::OnDone(operation, [&] { ++calls; });
  EXPECT_TRUE(group[1].Submit({Barrier()}, {.async = false})->status().ok());
  ShutdownProcess();
  EXPECT_EQ(calls, 1);
  Operation::OnDone(operation, [&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(CommunicatorProgressTest, WaitTimesOutAndTheOperationCompletesLater) {
  LocalGroup group(2);
  const auto operation = group[0].Submit({Barrier()}, {.async = true});
  const TimePoint before = SteadyClock().Now();
  EXPECT_EQ(operation->Wait(20ms).code(), StatusCode::kTimeout);
  EXPECT_GE(SteadyClock().Now() - before, 20ms);
  EXPECT_TRUE(group[1].Submit({Barrier()}, {.async = false})->status().ok());
  EXPECT_TRUE(operation->Wait(Nanoseconds(0)).ok());
}

TEST(CommunicatorOrderTest, PrivateInputsAreCopiedWhenTheCallStartsNotWhenItIsMade) {
  LocalGroup group(2);
  group.RunAll([](int rank, Communicator& communicator) {
    // The sum writes what the reduce-scatter reads and partly overwrites.
    std::vector<std::int32_t> values(6000, rank + 1);
    const auto sum = communicator.Submit({SumOf(values)}, {.async = true});
    const Block all = BlockOf(values);
    const Block halves[] = {{all.data, all.bytes / 2}, {all.data + all.bytes / 2, all.bytes / 2}};
    CollectiveRequest scatter{.collective = Collective::kReduceScatter,
                              .dtype = DataType::kInt32,
                              .reduce_op = ReduceOp::kSum,
                              .copy_inputs = true,
                              .inputs = {halves[0], halves[1]},
                              .outputs = {halves[1 - rank]}};
    const auto scattered = communicator.Submit({scatter}, {.async = true});
    EXPECT_TRUE(scattered->Wait(Nanoseconds(0)).ok());
    for (int i = 0; i < 6000; ++i)
      ASSERT_EQ(values[static_cast<std::size_t>(i)], (i < 3000) == (rank == 1) ? 6 : 3) << i;
  });
}

TEST(CommunicatorAllToAllTest, AnEvenOneMeetsOneThatGivesItsSplits) {
  LocalGroup group(2);
  group.RunAll([](int rank, Communicator& communicator) {
    std::vector<std::int32_t> sent(2, rank), got(2, -1);
    const auto cut = [](std::vector<std::int32_t>& values) {
      const Block all = BlockOf(values);
      return Blocks{{all.data, 4}, {all.data + 4, 4}};
    };
    CollectiveRequest request{.collective = Collective::kAllToAll,
                              .dtype = DataType::kInt32,
                              .even = rank == 0,
                              .inputs = cut(sent),
                              .outputs = cut(got)};
    EXPECT_TRUE(communicator.Submit({request}, {.async = false})->status().ok());
    EXPECT_EQ(got, (std::vector<std::int32_t>{0, 1}));
    // What says that it is even must be.
    request.even = true;
    request.inputs[static_cast<std::size_t>(1 - rank)].bytes = 8;
    EXPECT_THAT(communicator.Submit({request}, {.async = false})->status().message(),
                ::testing::HasSubstr("an input of an even all_to_all has"));
  });
}

TEST(CommunicatorOrderTest, ARefusalWaitsForThePeersBeforeTheNextCall) {
  LocalGroup group(2);
  std::vector<std::int32_t> values(4, 1);
  CollectiveRequest wrong = SumOf(values);
  wrong.inputs.clear();
  EXPECT_EQ(group[0].Submit({wrong}, {.async = false})->status().code(),
            StatusCode::kInvalidArgument);
  const auto next = group[0].Submit({SumOf(values)}, {.async = true});
  EXPECT_EQ(next->Wait(20ms).code(), StatusCode::kTimeout);
  // The peer made another call, in the other lane, under the number that rank 0 refused.
  const auto barrier = group[1].Submit({Barrier()}, {.async = false});
  EXPECT_EQ(barrier->status().code(), StatusCode::kMismatch) << barrier->status().message();
  EXPECT_EQ(next->Wait(Nanoseconds(0)).code(), StatusCode::kMismatch);
}

TEST(CommunicatorOrderTest, ACoalescedCallWhoseLaterMemberDiffersWritesNothing) {
  LocalGroup group(2);
  group.RunAll([](int rank, Communicator& communicator) {
    std::vector<std::int32_t> first(4, rank + 1), second(static_cast<std::size_t>(rank + 4), 1);
    const auto operation = communicator.Submit({SumOf(first), SumOf(second)}, {.async = false});
    EXPECT_EQ(operation->status().code(), StatusCode::kMismatch);
    EXPECT_EQ(first, std::vector<std::int32_t>(4, rank + 1));
  });
}

TEST(CommunicatorEndTest, EverySubmitThatRacesWithShutdownCompletes) {
  for (int round = 0; round < 200; ++round) {
    LocalGroup group(2, 60s, testing::AlgorithmTable::Default(), /*shutdown_timeout=*/1ms);
    std::thread other([&] { group[0].Shutdown(); });
    const auto barrier = group[0].Submit({Barrier()}, {.async = true});
    std::vector<std::int32_t> values(4);
    const auto receive = group[0].Receive(BlockOf(values), DataType::kInt32, 1, 0, {});
    EXPECT_FALSE(barrier->Wait(10s).ok());
    EXPECT_FALSE(receive->Wait(10s).ok());
    ASSERT_TRUE(barrier->done() && receive->done()) << "round " << round;
    other.join();
  }
}

TEST(CommunicatorEndTest, AbortEndsAShutdownThatWaits) {
  LocalGroup group(2, 60s, testing::AlgorithmTable::Default(), /*shutdown_timeout=*/60s);
  const auto barrier = group[0].Submit({Barrier()}, {.async = true});
  std::thread shutdown([&] { group[0].Shutdown(); });
  group[0].Abort("the test says so");
  shutdown.join();
  EXPECT_EQ(barrier->status().code(), StatusCode::kAborted);
}

TEST(CommunicatorEndTest, AnOperationOfTheParentFailsInAForkedChild) {
  LocalGroup group(2);
  const auto barrier = group[0].Submit({Barrier()}, {.async = true});
  const pid_t child = fork();
  if (child == 0) _exit(barrier->Wait(5s).code() == StatusCode::kAborted ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(group[1].Submit({Barrier()}, {.async = false})->status().ok());
  EXPECT_TRUE(barrier->Wait(Nanoseconds(0)).ok());
}

TEST(CommunicatorEndTest, AHandlerThatInterruptsACallIsRefusedAndMayShutDown) {
  static LocalGroup* interrupted = nullptr;
  static int looks = 0;
  LocalGroup group(2);
  interrupted = &group;
  looks = 0;
  SetInterruptCheck([] {
    if (looks++ > 0) return false;
    const auto nested = (*interrupted)[0].Submit({Barrier()}, {.async = false});
    EXPECT_EQ(nested->status().code(), StatusCode::kAborted) << nested->status().message();
    (*interrupted)[0].Shutdown();
    return false;
  });
  const auto barrier = group[0].Submit({Barrier()}, {.async = false});
  SetInterruptCheck(nullptr);
  EXPECT_EQ(barrier->status().code(), StatusCode::kAborted) << barrier->status().message();
  EXPECT_GT(looks, 0);
}

TEST(CommunicatorTest, CreateRefusesRanksOutOfRange) {
  CommunicatorOptions options;
  options.rank = 2;
  options.ranks = 2;
  EXPECT_EQ(Communicator::Create(std::move(options)).status().code(), StatusCode::kInvalidArgument);
  CommunicatorOptions many;
  many.ranks = 65;
  EXPECT_EQ(Communicator::Create(std::move(many)).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidegate
