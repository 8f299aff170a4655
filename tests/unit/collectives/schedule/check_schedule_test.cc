#include "collectives/schedule/check_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <functional>

#include "collectives/schedule/builder.h"

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Rank 1 of 4, with 2 sub-slots.
ScheduleBuilder Builder(Collective collective = Collective::kAllGather) {
  ScheduleBuilder builder("example", collective, 1, 4);
  builder.SubSlots(2);
  return builder;
}

/// What is wrong with a schedule of one step.
std::string FaultOf(const std::function<void(ScheduleBuilder&)>& add,
                    Collective collective = Collective::kAllGather) {
  ScheduleBuilder builder = Builder(collective);
  add(builder);
  const std::optional<ScheduleFault> fault = FindFault(builder.Build());
  if (!fault) return "";
  EXPECT_EQ(fault->step, 0);
  return fault->what;
}
std::string FaultAfter(const std::function<void(Schedule&)>& change) {
  ScheduleBuilder builder = Builder();
  builder.Get(Output(0), Stage(0, 0));
  Schedule schedule = builder.Build();
  EXPECT_EQ(CheckSchedule(schedule).message(), "");
  change(schedule);
  const std::optional<ScheduleFault> fault = FindFault(schedule);
  return fault ? fault->what : "";
}

TEST(CheckScheduleTest, NamesAlgorithmRankAndStep) {
  ScheduleBuilder builder = Builder();
  builder.Signal(kReady, kLongestBlock);
  builder.Get(Output(4), Stage(0, 0));
  const Status status = CheckSchedule(builder.Build());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "schedule example of rank 1 step 1: the extent output[4] reaches from 4 to 4; there are "
      "4 such blocks on this rank, from 0");
}

TEST(CheckScheduleTest, OriginsAreInputsOfPeersInOneSubSlot) {
  const auto get = [](Slice source) {
    return FaultOf([&](ScheduleBuilder& builder) { builder.Get(Output(0), source); });
  };
  EXPECT_EQ(get(StagedInput(0, 0, 0)), "");
  EXPECT_THAT(get(StagedInput(0, 0, 1)), HasSubstr("the origin is 1, and must be 0 to 0"));
  const auto copy = [](Slice dst, Slice src, Collective collective) {
    return FaultOf(
        [&](ScheduleBuilder& builder) { builder.MoveWhile(StepKind::kCopy, dst, src, Output(0)); },
        collective);
  };
  EXPECT_THAT(copy(Output(0), StagedInput(1, 0, 0), Collective::kAllGather),
              HasSubstr("only one sub-slot of a peer's stage has an origin"));
  EXPECT_THAT(
      FaultOf([](ScheduleBuilder& builder) { builder.Put(StagedInput(0, 0, 0), Input(0)); }),
      HasSubstr("only what is read has an origin"));
  EXPECT_THAT(
      FaultOf([](ScheduleBuilder& builder) { builder.Get(Output(0), StagedInput(0, 0, 2)); },
              Collective::kAllToAll),
      HasSubstr("reads only what is meant for it"));
}

TEST(CheckScheduleTest, OnlyInputsForPeersAreStagedUnlessResident) {
  const auto staging = [](const std::function<void(ScheduleBuilder&)>& add) {
    return FaultOf([&](ScheduleBuilder& builder) { add(builder.Staging()); });
  };
  EXPECT_EQ(staging([](ScheduleBuilder& builder) { builder.Copy(Stage(1, 0), Input(0)); }), "");
  EXPECT_EQ(staging([](ScheduleBuilder& builder) { builder.Signal(0, kLongestBlock); }), "");
  EXPECT_THAT(staging([](ScheduleBuilder& builder) { builder.Copy(Output(1), Input(0)); }),
              HasSubstr("copies one input into its own stage"));
  EXPECT_THAT(staging([](ScheduleBuilder& builder) { builder.Get(Output(0), Stage(0, 0)); }),
              HasSubstr("that get does not use"));
}

TEST(CheckScheduleTest, MarkThatStandsFromTheStartSaysNothingElse) {
  ScheduleBuilder builder = Builder();
  builder.Staging().Signal(2, kLongestBlock);
  builder.Staging(false).Signal(2, kLongestBlock);
  const std::optional<ScheduleFault> fault = FindFault(builder.Build());
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->step, 1);
  EXPECT_THAT(fault->what, HasSubstr("mark 2 is signalled both"));
}

TEST(CheckScheduleTest, RefusesNumbersOfTheHeaderOutOfRange) {
  const auto wrong = [](auto Schedule::* field, int value) {
    return FaultAfter([&](Schedule& schedule) { schedule.*field = value; });
  };
  EXPECT_EQ(wrong(&Schedule::ranks, 0), "ranks is 0, and must be 1 to 1048576");
  EXPECT_EQ(wrong(&Schedule::ranks, 1'000'000'000),
            "ranks is 1000000000, and must be 1 to 1048576");
  EXPECT_EQ(wrong(&Schedule::rank, 4), "rank is 4, and must be 0 to 3");
  EXPECT_EQ(wrong(&Schedule::rank, -1), "rank is -1, and must be 0 to 3");
  EXPECT_EQ(wrong(&Schedule::root, 0), "root is 0, and must be -1 to -1");
  EXPECT_EQ(wrong(&Schedule::sub_slots, 0), "sub_slots is 0, and must be 1 to 16777216");
  EXPECT_EQ(wrong(&Schedule::sub_slots, INT_MAX),
            "sub_slots is 2147483647, and must be 1 to 16777216");
  EXPECT_EQ(wrong(&Schedule::parts, 2), "parts is 2, and must be 1 to 1");
  EXPECT_EQ(wrong(&Schedule::period, 0), "period is 0, and must be 1 to 1048576");
  EXPECT_EQ(FaultAfter([](Schedule& schedule) { schedule.even = true; }),
            "even is of all_to_all, gather and scatter alone");
  EXPECT_THAT(FaultAfter([](Schedule& schedule) { schedule.name = "a b"; }), HasSubstr("name"));
  EXPECT_THAT(FaultAfter([](Schedule& schedule) { schedule.name = ""; }), HasSubstr("name"));
  EXPECT_THAT(FaultAfter([](Schedule& schedule) {
                schedule.collective = static_cast<Collective>(kCollectives);
              }),
              HasSubstr("no collective 9"));
}

TEST(CheckScheduleTest, ARootedCollectiveNeedsItsRoot) {
  for (const int root : {-1, 4}) {
    const Schedule schedule =
        ScheduleBuilder("example", Collective::kBroadcast, 1, 4).Root(root).Build();
    EXPECT_THAT(CheckSchedule(schedule).message(), HasSubstr("root is " + std::to_string(root)));
  }
}

TEST(CheckScheduleTest, BlocksAreThoseOfCollectiveRankAndRoot) {
  const auto counts = [](Collective collective, int root, int parts = 1) {
    return BlocksOf(ScheduleBuilder("example", collective, 1, 4).Root(root).Parts(parts).Build());
  };
  EXPECT_EQ(counts(Collective::kAllGather, -1), (BlockCounts{1, 4}));
  EXPECT_EQ(counts(Collective::kReduceScatter, -1), (BlockCounts{4, 1}));
  EXPECT_EQ(counts(Collective::kAllReduce, -1, 3), (BlockCounts{3, 3}));
  EXPECT_EQ(counts(Collective::kBroadcast, 1, 3), (BlockCounts{3, 3}));
  EXPECT_EQ(counts(Collective::kBroadcast, 0, 3), (BlockCounts{0, 3}));
  EXPECT_EQ(counts(Collective::kReduce, 1, 3), (BlockCounts{3, 3}));
  EXPECT_EQ(counts(Collective::kReduce, 0, 3), (BlockCounts{3, 0}));
  EXPECT_EQ(counts(Collective::kGather, 1), (BlockCounts{1, 4}));
  EXPECT_EQ(counts(Collective::kGather, 0), (BlockCounts{1, 0}));
  EXPECT_EQ(counts(Collective::kScatter, 1), (BlockCounts{4, 1}));
  EXPECT_EQ(counts(Collective::kScatter, 0), (BlockCounts{0, 1}));
  EXPECT_EQ(counts(Collective::kAllToAll, -1), (BlockCounts{4, 4}));
  EXPECT_EQ(counts(Collective::kBarrier, -1), (BlockCounts{0, 0}));
}

TEST(CheckScheduleTest, SlicesEndWithinWhatThereIs) {
  const auto get = [](Slice dst, Slice src) {
    return FaultOf([&](ScheduleBuilder& builder) { builder.Get(dst, src); });
  };
  EXPECT_EQ(get(Output(3), Stage(0, 1)), "");
  EXPECT_EQ(get({Buffer::kOutput, -1, 1, 2, 2}, {Buffer::kStage, 0, 0, 2, 1}), "");
  EXPECT_THAT(get(Output(0), Stage(0, 2)), HasSubstr("there are 2 sub-slots"));
  EXPECT_THAT(get(Output(0), Stage(0, -1)), HasSubstr("reaches from -1"));
  EXPECT_THAT(get(Output(0), Stage(4, 0)), HasSubstr("rank 4 is none of 0 to 3"));
  EXPECT_THAT(get(Output(0), Stage(-1, 0)), HasSubstr("rank -1 is none of 0 to 3"));
  EXPECT_THAT(get({Buffer::kOutput, -1, 2, 2, 2}, {Buffer::kStage, 0, 0, 2, 1}),
              HasSubstr("reaches from 2 to 4"));
  EXPECT_THAT(get({Buffer::kOutput, -1, 0, INT_MAX, INT_MAX}, Stage(0, 0)),
              HasSubstr("reaches from 0 to 4611686011984936962"));
  EXPECT_THAT(get({Buffer::kOutput, -1, 3, 2, -1}, {Buffer::kStage, 0, 0, 2, 1}),
              HasSubstr("ascend"));
  EXPECT_THAT(get({Buffer::kOutput, -1, 0, 0, 1}, {Buffer::kStage, 0, 0, 0, 1}),
              HasSubstr("needs one block"));
}

TEST(CheckScheduleTest, ABlockIsReadAndWrittenForTheLengthOfItsOwn) {
  const auto copy = [](Collective collective, Slice dst, Slice src) {
    return FaultOf([&](ScheduleBuilder& builder) { builder.Copy(dst, src); }, collective);
  };
  EXPECT_EQ(copy(Collective::kAllGather, Output(1), Input(0)), "");
  EXPECT_EQ(copy(Collective::kAllGather, Output(2), Input(0)),
            "the source input[0] need not be as long as the extent output[2]");
  EXPECT_EQ(copy(Collective::kReduceScatter, Output(0), Input(1)), "");
  EXPECT_THAT(copy(Collective::kReduceScatter, Output(0), Input(2)), HasSubstr("as long as"));
  EXPECT_EQ(copy(Collective::kAllToAll, Output(1), Input(1)), "");
  EXPECT_THAT(copy(Collective::kAllToAll, Output(0), Input(1)), HasSubstr("as long as"));
  EXPECT_EQ(copy(Collective::kAllToAll, Stage(1, 1), Input(0)), "");
  EXPECT_THAT(FaultOf([](ScheduleBuilder& builder) {
                builder.MoveWhile(StepKind::kGet, Output(0), Stage(0, 0), Output(2));
              }),
              HasSubstr("as long as the extent output[2]"));
  EXPECT_THAT(FaultOf([](ScheduleBuilder& builder) {
                builder.MoveWhile(StepKind::kGet, Output(0), Stage(0, 0), kLongestBlock);
              }),
              HasSubstr("must be certain blocks"));
  EXPECT_THAT(FaultOf([](ScheduleBuilder& builder) {
                builder.MoveWhile(StepKind::kGet, Output(0), Stage(0, 0), Stage(0, 0));
              }),
              HasSubstr("whose sizes the caller gives"));
  EXPECT_THAT(FaultOf([](ScheduleBuilder& builder) {
                builder.Get(Output(0), {Buffer::kStage, 0, 0, 2, 1});
              }),
              HasSubstr("as long as"));
}

TEST(CheckScheduleTest, EachKindMovesWhatItsNameSays) {
  const auto move = [](StepKind kind, Slice dst, Slice src) {
    return FaultOf([&](ScheduleBuilder& builder) {
      builder.MoveWhile(kind, dst, src, dst.buffer == Buffer::kStage ? src : dst);
    });
  };
  EXPECT_EQ(move(StepKind::kPut, Stage(0, 0), Input(0)), "");
  EXPECT_THAT(move(StepKind::kPut, Stage(1, 0), Input(0)), HasSubstr("use copy"));
  EXPECT_THAT(move(StepKind::kCopy, Stage(0, 0), Input(0)), HasSubstr("use put"));
  EXPECT_THAT(move(StepKind::kCopy, Output(0), Stage(0, 0)), HasSubstr("copy reads this rank's"));
  EXPECT_THAT(move(StepKind::kGet, Output(0), Stage(1, 0)), HasSubstr("get reads the stage of"));
  EXPECT_THAT(move(StepKind::kCopy, Input(0), Stage(1, 0)), HasSubstr("only read"));
  EXPECT_THAT(
      FaultAfter([](Schedule& schedule) { schedule.steps[0].kind = static_cast<StepKind>(17); }),
      HasSubstr("no step of kind 17"));
}

TEST(CheckScheduleTest, PeersMarksLagsAndOffsetsAreInRange) {
  const auto wait = [](int peer, Mark mark, Slice extent, int offset = 0, int lag = 0) {
    return FaultOf(
        [&](ScheduleBuilder& builder) { builder.Lag(lag).Wait(peer, mark, extent, offset); });
  };
  EXPECT_EQ(wait(3, 0, Output(3), -2), "");
  EXPECT_EQ(wait(kAllPeers, ScheduleLimits::kMarks - 1, kLongestBlock, 127), "");
  EXPECT_EQ(wait(4, 0, kLongestBlock), "peer is 4, and must be 0 to 3");
  EXPECT_EQ(wait(-2, 0, kLongestBlock), "peer is -2, and must be 0 to 3");
  EXPECT_EQ(wait(1, 0, kLongestBlock), "peer 1 is the rank itself");
  EXPECT_EQ(wait(0, -1, kLongestBlock), "mark is -1, and must be 0 to 8388607");
  EXPECT_THAT(wait(0, INT_MAX, kLongestBlock), HasSubstr("mark is 2147483647"));
  EXPECT_THAT(wait(0, 0, kLongestBlock, -128), HasSubstr("offset"));
  EXPECT_EQ(wait(0, 0, kLongestBlock, 0, -1), "lag is -1, and must be 0 to 4194304");
  EXPECT_THAT(wait(0, 0, kLongestBlock, 0, INT_MAX), HasSubstr("lag is 2147483647"));
  EXPECT_THAT(wait(0, 0, Output(4)), HasSubstr("there are 4"));
}

TEST(CheckScheduleTest, OperandsAreWithinTheScheduleAndInOrder) {
  ScheduleBuilder builder = Builder(Collective::kReduceScatter);
  for (int i = 0; i < 2; ++i)
    builder.Reduce(Output(0), {{Stage(0, 0), 0}, {Input(1), 1}}, Output(0));
  const Schedule good = builder.Build();
  ASSERT_EQ(CheckSchedule(good).message(), "");
  const auto with = [&](auto change) {
    Schedule schedule = good;
    change(schedule);
    return CheckSchedule(schedule).message();
  };
  EXPECT_THAT(with([](Schedule& s) { s.steps[1].operand_count = 3; }),
              AllOf(HasSubstr("step 1"), HasSubstr("3 from 2 on")));
  EXPECT_THAT(with([](Schedule& s) { s.steps[1].operand_count = INT_MAX; }), HasSubstr("step 1"));
  EXPECT_THAT(with([](Schedule& s) { s.steps[1].first_operand = -1; }), HasSubstr("-1 on"));
  EXPECT_THAT(with([](Schedule& s) { s.steps[1].first_operand = 0; }), HasSubstr("step 1"));
  EXPECT_THAT(with([](Schedule& s) { s.steps[1].operand_count = 0; }),
              HasSubstr("needs an operand"));
  EXPECT_THAT(with([](Schedule& s) { s.operands.emplace_back(); }), HasSubstr("of no step"));
  EXPECT_THAT(with([](Schedule& s) { s.operands[2].contributor = 4; }),
              HasSubstr("contributor of an operand is 4"));
  EXPECT_THAT(with([](Schedule& s) { s.operands[3].slice = Input(4); }), HasSubstr("there are 4"));
  EXPECT_THAT(with([](Schedule& s) { s.operands[3].slice = Input(2); }), HasSubstr("as long as"));
}

TEST(CheckScheduleTest, FieldsThatAKindDoesNotUseHaveTheirDefaults) {
  EXPECT_THAT(FaultAfter([](Schedule& s) { s.steps[0].mark = 1; }), HasSubstr("does not use"));
  EXPECT_THAT(FaultAfter([](Schedule& s) { s.steps[0].peer = 2; }), HasSubstr("does not use"));
  EXPECT_THAT(FaultAfter([](Schedule& s) { s.steps[0].partial = true; }),
              HasSubstr("does not use"));
  EXPECT_THAT(FaultAfter([](Schedule& s) { s.steps[0].wait_offset = 1; }),
              HasSubstr("does not use"));
}

TEST(CheckScheduleTest, RefusesMoreThanItsLimits) {
  EXPECT_THAT(
      FaultAfter([](Schedule& s) { s.steps.resize(ScheduleLimits::kSteps + 1, s.steps[0]); }),
      "4194305 steps; there may be 4194304");
  EXPECT_THAT(FaultAfter([](Schedule& s) {
                s.ranks = ScheduleLimits::kRanks;
                s.sub_slots = s.ranks;
                Step& step = s.steps[0];
                step.dst = step.extent = {Buffer::kOutput, -1, 0, s.ranks, 1};
                step.src = {Buffer::kStage, 0, 0, s.ranks, 1};
                s.steps.resize(129, step);
              }),
              HasSubstr("135266304 blocks; a schedule may move 134217728"));
}

}  // namespace
}  // namespace tidegate
