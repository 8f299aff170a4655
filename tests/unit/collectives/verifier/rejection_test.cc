// Schedules that are wrong in one way each, and what the verifier says of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/schedule/schedule_text.h"
#include "collectives/verifier/verifier.h"

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Two ranks' programs, as lines that a test can change.
struct Pair {
  std::string head;
  std::vector<std::string> lines[2];

  /// The line of `rank` at `index` becomes `line`; "" takes it away.
  Pair With(int rank, std::size_t index, const std::string& line) const {
    Pair changed = *this;
    auto& lines_of = changed.lines[rank];
    if (line.empty())
      lines_of.erase(lines_of.begin() + static_cast<std::ptrdiff_t>(index));
    else
      lines_of[index] = line;
    return changed;
  }
  Pair And(int rank, std::size_t before, const std::string& line) const {
    Pair changed = *this;
    auto& lines_of = changed.lines[rank];
    lines_of.insert(lines_of.begin() + static_cast<std::ptrdiff_t>(before), line);
    return changed;
  }

  Schedule Of(int rank) const {
    std::string text = head;
    text.replace(text.find('#'), 1, std::to_string(rank));
    text += '\n';
    for (const std::string& line : lines[rank]) text += "  " + line + "\n";
    Result<Schedule> schedule = ParseScheduleText(text);
    if (schedule.ok()) return schedule.value();
    ADD_FAILURE() << schedule.status().message();
    return {};
  }
};

Pair AllGather() {
  return {"all_gather test rank # of 2 sub_slots 1 parts 1 period 1",
          {{"lag 0  wait 1 mark 1 c-2  while longest has c",
            "lag 0  copy stage(0)[0] <- input[0]  while input[0] has c",
            "lag 0  signal all mark 0  while longest has c",
            "lag 1  copy output[0] <- input[0]  while input[0] has c",
            "lag 1  wait 1 mark 0 c  while output[1] has c",
            "lag 1  get output[1] <- stage(1)[0]  while output[1] has c",
            "lag 1  signal all mark 1  while longest has c+2"},
           {"lag 0  wait 0 mark 1 c-2  while longest has c",
            "lag 0  copy stage(1)[0] <- input[0]  while input[0] has c",
            "lag 0  signal all mark 0  while longest has c",
            "lag 1  copy output[1] <- input[0]  while input[0] has c",
            "lag 1  wait 0 mark 0 c  while output[0] has c",
            "lag 1  get output[0] <- stage(0)[0]  while output[0] has c",
            "lag 1  signal all mark 1  while longest has c+2"}}};
}

/// Rank 1 sends its part over to rank 0, which reduces it, and back.
Pair AllReduce() {
  return {"all_reduce test rank # of 2 sub_slots 2 parts 1 period 1",
          {{"lag 0  wait 1 mark 0 c  while input[0] has c",
            "lag 0  wait 1 mark 1 c-2  while input[0] has c",
            "lag 0  reduce stage(0)[1] <- input[0]:0 stage(1)[0]:1  while input[0] has c",
            "lag 0  signal all mark 0  while longest has c",
            "lag 1  copy output[0] <- stage(0)[1]  while output[0] has c"},
           {"lag 0  wait 0 mark 0 c-2  while input[0] has c",
            "lag 0  copy stage(1)[0] <- input[0]  while input[0] has c",
            "lag 0  signal all mark 0  while longest has c",
            "lag 1  wait 0 mark 0 c  while output[0] has c",
            "lag 1  get output[0] <- stage(0)[1]  while output[0] has c",
            "lag 1  signal all mark 1  while longest has c+2"}}};
}

Pair ReduceScatter() {
  return {"reduce_scatter test rank # of 2 sub_slots 1 parts 1 period 1",
          {{"lag 0  wait 1 mark 1 c-2  while input[1] has c",
            "lag 0  copy stage(0)[0] <- input[1]  while input[1] has c",
            "lag 0  signal 1 mark 0  while longest has c",
            "lag 1  wait 1 mark 0 c  while input[0] has c",
            "lag 1  reduce output[0] <- input[0]:0 stage(1)[0]:1  while output[0] has c",
            "lag 1  signal all mark 1  while longest has c+2"},
           {"lag 0  wait 0 mark 1 c-2  while input[0] has c",
            "lag 0  copy stage(1)[0] <- input[0]  while input[0] has c",
            "lag 0  signal 0 mark 0  while longest has c",
            "lag 1  wait 0 mark 0 c  while input[1] has c",
            "lag 1  reduce output[0] <- stage(0)[0]:0 input[1]:1  while output[0] has c",
            "lag 1  signal all mark 1  while longest has c+2"}}};
}

Status VerifyPair(const Pair& pair, Collective collective, int nodes = 1) {
  const Placement placement = Placement::Block(nodes, 2 / nodes);
  return VerifyPlan(collective, placement, 0, [&](int rank) { return pair.Of(rank); });
}
std::string GatherError(const Pair& pair, int nodes = 1) {
  return VerifyPair(pair, Collective::kAllGather, nodes).message();
}
std::string ReduceError(const Pair& pair) {
  return VerifyPair(pair, Collective::kAllReduce).message();
}

TEST(VerifierRejectionTest, AcceptsThePairsThatTheOthersAreMadeFrom) {
  EXPECT_EQ(GatherError(AllGather()), "");
  EXPECT_EQ(ReduceError(AllReduce()), "");
  EXPECT_EQ(VerifyPair(ReduceScatter(), Collective::kReduceScatter).message(), "");
}

TEST(VerifierRejectionTest, NamesARankThatNeverSignals) {
  EXPECT_THAT(GatherError(AllGather().With(1, 2, "")),
              AllOf(HasSubstr("all_gather test rank 0, step 4 (lag 1  wait 1 mark 0 c  while "
                              "output[1] has c), chunk 0: deadlock: waits for ever for rank 1"),
                    HasSubstr("rank 1 never signals it")));
}

TEST(VerifierRejectionTest, NamesTheCircleOfADeadlock) {
  const std::string first = "lag 0  wait 1 mark 0 c  while longest has c";
  const std::string second = "lag 0  wait 0 mark 0 c  while longest has c";
  EXPECT_THAT(GatherError(AllGather().With(0, 0, first).With(1, 0, second)),
              AllOf(HasSubstr("rank 0, step 0"), HasSubstr("waits for ever for rank 1"),
                    HasSubstr("rank 1 waits at step 0 (lag 0  wait 0 mark 0 c  while longest has "
                              "c), chunk 0, for rank 0"),
                    HasSubstr("closes the circle")));
}

TEST(VerifierRejectionTest, FindsADeadlockOfAPipelineDeeperThanItRuns) {
  // In one iteration rank 0 waits for chunk i - 40 of rank 1 before it signals chunk i, for which
  // rank 1 waits before it signals chunk i - 40.
  const Pair pair = AllGather()
                        .And(0, 0, "lag 40  wait 1 mark 2 c  while longest has c")
                        .And(0, 1, "lag 0  signal 1 mark 3  while longest has c")
                        .And(1, 0, "lag 0  wait 0 mark 3 c  while longest has c")
                        .And(1, 1, "lag 40  signal 0 mark 2  while longest has c");
  EXPECT_THAT(GatherError(pair),
              AllOf(HasSubstr("mark 2"), HasSubstr("with more chunks it waits in a circle")));
}

TEST(VerifierRejectionTest, AcceptsThatARankRunsAheadOfItsPeer) {
  // Rank 1 waits for what rank 0 does three iterations later, which waits for nothing of rank 1.
  const Pair pair = AllGather()
                        .And(0, 0, "lag 3  signal 1 mark 3  while longest has c")
                        .With(0, 1, "lag 0  wait 1 mark 1 c-2  while longest has c");
  EXPECT_EQ(GatherError(pair.And(1, 0, "lag 3  wait 0 mark 3 c  while longest has c")), "");
  EXPECT_THAT(GatherError(pair.And(1, 0, "lag 0  wait 0 mark 3 c  while longest has c")),
              HasSubstr("deadlock"));
}

TEST(VerifierRejectionTest, NamesTheWriterOfWhatIsReadTooEarly) {
  EXPECT_THAT(GatherError(AllGather().With(1, 4, "")),
              AllOf(HasSubstr("rank 1, step 4 (lag 1  get output[0] <- stage(0)[0]"),
                    HasSubstr("races: reads stage(0)[0] while rank 0 may be writing it")));
  EXPECT_THAT(GatherError(AllGather().With(0, 4, "")),
              HasSubstr("reads stage(1)[0] before it is written"));
}

TEST(VerifierRejectionTest, NamesTheReaderOfWhatIsOverwrittenTooEarly) {
  EXPECT_THAT(GatherError(AllGather().With(0, 0, "")),
              AllOf(HasSubstr("rank 0, step 0"), HasSubstr("chunk 2"),
                    HasSubstr("races: writes stage(0)[0] while rank 1 may be reading chunk 0 of "
                              "rank 0's input[0]")));
  EXPECT_THAT(GatherError(AllGather().With(1, 0, "")),
              HasSubstr("overwrites stage(1)[0], which holds chunk 0 of rank 1's input[0] that "
                        "nobody has read"));
}

TEST(VerifierRejectionTest, SeesThatASlotHoldsAnotherChunk) {
  // When rank 0 comes to copy chunk 0 out of its stage, chunk 2 lies there.
  EXPECT_THAT(GatherError(AllGather().With(
                  0, 3, "lag 3  copy output[0] <- stage(0)[0]  while output[0] has c")),
              HasSubstr("reads stage(0)[0], which holds chunk 2 of rank 0's input[0]"));
}

TEST(VerifierRejectionTest, RejectsASignalThatAnotherBlockWouldBringForward) {
  EXPECT_THAT(
      GatherError(AllGather().And(0, 2, "lag 0  signal 1 mark 0  while input[0] has c")),
      AllOf(HasSubstr("rank 0, step 2"),
            HasSubstr("signals a mark that another step signals, too, and not for the longest "
                      "block")));
}

TEST(VerifierRejectionTest, RejectsReadingAnotherNode) {
  EXPECT_THAT(GatherError(AllGather(), /*nodes=*/2),
              HasSubstr("reads the stage of rank 1, which is on node 1 and this rank on node 0"));
}

TEST(VerifierRejectionTest, RejectsAWrongBlockAndAnOutputTwiceOrNever) {
  EXPECT_THAT(GatherError(AllGather().With(
                  1, 5, "lag 1  copy output[0] <- stage(1)[0]  while output[0] has c")),
              HasSubstr("writes chunk 0 of rank 1's input[0] to output[0], which must be rank 0's "
                        "input[0]"));
  EXPECT_THAT(GatherError(AllGather().With(1, 3, "")),
              HasSubstr("ends without having written chunk 0 of output[1]"));
  EXPECT_THAT(GatherError(AllGather().And(1, 3, AllGather().lines[1][3])),
              HasSubstr("writes output[1] again, after step 3"));
}

TEST(VerifierRejectionTest, RejectsWordsThatFall) {
  EXPECT_THAT(GatherError(AllGather().And(0, 7, "lag 2  signal all mark 0  while longest has c")),
              HasSubstr("signals chunk 0 after chunk 2 at the same mark: words only grow"));
}

TEST(VerifierRejectionTest, RejectsAStageThatNobodyReads) {
  Pair pair = AllGather();
  pair.head = "all_gather test rank # of 2 sub_slots 2 parts 1 period 1";
  EXPECT_THAT(
      GatherError(pair.And(0, 1, "lag 0  copy stage(0)[1] <- input[0]  while input[0] has c")),
      AllOf(HasSubstr("overwrites stage(0)[1]"), HasSubstr("that nobody has read")));
}

TEST(VerifierRejectionTest, RejectsRanksThatDisagreeOnTheirStages) {
  const Pair pair = AllGather();
  Pair other = pair;
  other.head = "all_gather test rank # of 2 sub_slots 2 parts 1 period 1";
  const Placement placement = Placement::OneNode(2);
  const Status status = VerifyPlan(Collective::kAllGather, placement, 0, [&](int rank) {
    return rank == 0 ? pair.Of(rank) : other.Of(rank);
  });
  EXPECT_THAT(status.message(), HasSubstr("its sub_slots is 2, and must be 1"));
}

TEST(VerifierRejectionTest, RejectsAProgramOfAnotherRank) {
  const Placement placement = Placement::OneNode(2);
  const Status status =
      VerifyPlan(Collective::kAllGather, placement, 0, [&](int) { return AllGather().Of(0); });
  EXPECT_THAT(status.message(), HasSubstr("given for rank 1: its rank is 0, and must be 1"));
}

TEST(VerifierRejectionTest, RejectsAReductionThatIsNotComplete) {
  EXPECT_THAT(ReduceError(AllReduce().With(
                  0, 2, "lag 0  reduce stage(0)[1] <- input[0]:0  while input[0] has c")),
              HasSubstr("lacks 1 of 2 contributions: those of ranks 1"));
  EXPECT_THAT(
      ReduceError(AllReduce().With(
          0, 2, "lag 0  reduce stage(0)[1] <- stage(1)[0]:1 input[0]:0  while input[0] has c")),
      HasSubstr("operand 1, input[0], which is chunk 0 of rank 0's input[0], follows one of rank "
                "1: operands come in the order of ranks"));
}

TEST(VerifierRejectionTest, RejectsFactorsAndDivisionsAppliedWrongly) {
  EXPECT_THAT(
      ReduceError(AllReduce().With(
          0, 2, "lag 0  reduce stage(0)[1] <- input[0]:0 stage(1)[0]  while input[0] has c")),
      HasSubstr("has contributor -1, not 1"));
  EXPECT_THAT(
      ReduceError(AllReduce().With(
          0, 2, "lag 0  partial stage(0)[1] <- input[0]:0 stage(1)[0]:1  while input[0] has c")),
      HasSubstr("must be the sum of all inputs[0], divided where AVG divides"));
  EXPECT_THAT(ReduceError(AllReduce().With(
                  0, 4, "lag 1  copy output[0] <- input[0]  while output[0] has c")),
              HasSubstr("must be the sum of all inputs[0], with factors applied"));
}

TEST(VerifierRejectionTest, RejectsReadingAnInputThatTheOutputHasReplaced) {
  // Rank 1 reduces once more, of what its output, in place, has overwritten.
  const Pair pair =
      AllReduce().And(1, 5, "lag 1  copy stage(1)[1] <- input[0]  while input[0] has c");
  EXPECT_THAT(ReduceError(pair), HasSubstr("which the output has replaced where both are the same "
                                           "memory"));
  // The output of rank 1 may be its input[1] alone, not input[0].
  for (const int block : {0, 1}) {
    const std::string line = "lag 1  partial stage(1)[0] <- input[" + std::to_string(block) +
                             "]:1  while input[" + std::to_string(block) + "] has c";
    const Status status = VerifyPair(ReduceScatter().And(1, 5, line), Collective::kReduceScatter);
    EXPECT_EQ(status.message().find("which the output has replaced") != std::string::npos,
              block == 1)
        << status.message();
  }
}

TEST(VerifierRejectionTest, CountsWhatIsReadInsideANode) {
  const Placement placement = Placement::OneNode(2);
  const Result<Report> report = Verify({.collective = Collective::kAllGather,
                                        .placement = &placement,
                                        .chunk_bytes = 64,
                                        .sizes = {100, 7}},
                                       [](int rank) { return AllGather().Of(rank); });
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().read, (std::vector<RankBytes>{{0, 1, 100}, {1, 0, 7}}));
  EXPECT_EQ(report.value().put, std::vector<RankBytes>{});
  EXPECT_EQ(report.value().leaves, std::vector<std::int64_t>{0});
  EXPECT_EQ(report.value().iterations, 3);
}

TEST(VerifierRejectionTest, FindsAWaitThatAnotherOneImplies) {
  const Placement placement = Placement::OneNode(2);
  const Pair pair = AllGather().And(0, 4, "lag 1  wait 1 mark 0 c-1  while output[1] has c");
  const Result<Report> report = VerifyThoroughly(Collective::kAllGather, placement, 0,
                                                 [&](int rank) { return pair.Of(rank); });
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().implied_waits, (std::vector<Report::StepOf>{{0, 4}}));
}

/// Rank 0 stages its tensor for rank 2, and then for rank 1.
Schedule OneAfterTheOther(int rank, const std::string& marks_of_others) {
  std::string text =
      "broadcast test rank " + std::to_string(rank) + " of 3 root 0 sub_slots 2 parts 1 period 1\n";
  if (rank == 0)
    text +=
        "  lag 0  wait all mark 2 c-2  while longest has c\n"
        "  lag 0  copy stage(0)[0] <- input[0]  while input[0] has c\n"
        "  lag 0  signal 2 mark 0  while longest has c\n"
        "  lag 0  copy stage(0)[1] <- input[0]  while input[0] has c\n"
        "  lag 0  signal 1 mark " +
        marks_of_others + "  while longest has c\n";
  else
    text += "  lag 0  wait 0 mark " + (rank == 2 ? "0" : marks_of_others) +
            " c  while output[0] has c\n  lag 0  get output[0] <- stage(0)[" +
            (rank == 2 ? "0" : "1") +
            "]  while output[0] has c\n  lag 0  signal all mark 2  while longest has c+2\n";
  const Result<Schedule> schedule = ParseScheduleText(text);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message() << text;
  return schedule.ok() ? schedule.value() : Schedule();
}

TEST(VerifierRejectionTest, KnowsThatASignalToOneIsSeenByAll) {
  const Placement placement = Placement::OneNode(3);
  const auto error = [&](const std::string& mark) {
    return VerifyPlan(Collective::kBroadcast, placement, 0,
                      [&](int rank) { return OneAfterTheOther(rank, mark); })
        .message();
  };
  EXPECT_EQ(error("1"), "");
  EXPECT_THAT(error("0"), HasSubstr("races"));
}

TEST(VerifierRejectionTest, SaysWhichSizesAreWanted) {
  const Placement placement = Placement::OneNode(2);
  const auto schedule_of = [](int rank) { return AllGather().Of(rank); };
  EXPECT_THAT(Verify({.placement = &placement, .sizes = {1, 2, 3}}, schedule_of).status().message(),
              HasSubstr("needs 2 sizes, got 3"));
  EXPECT_THAT(Verify({.placement = &placement, .sizes = {-1}}, schedule_of).status().message(),
              HasSubstr("a block of -1 bytes"));
  EXPECT_THAT(
      Verify({.placement = &placement, .sizes = {1}, .shift = 3}, schedule_of).status().message(),
      HasSubstr("a shift of 3 among 2 ranks"));
}

}  // namespace
}  // namespace tidegate
