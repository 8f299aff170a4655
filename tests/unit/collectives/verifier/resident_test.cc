// Schedules that say of staged inputs where else they can be read, and what the verifier makes of
// it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/schedule/schedule_text.h"
#include "collectives/verifier/verifier.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

/// The programs of two ranks, all alike but for their numbers: M is the rank, P its peer.
Status VerifyBoth(Collective collective, const std::string& head,
                  const std::vector<std::string>& lines) {
  const auto program = [&](int rank) {
    std::string text = head + "\n";
    for (const std::string& line : lines) text += "  " + line + "\n";
    for (char& letter : text) {
      if (letter == 'M') letter = static_cast<char>('0' + rank);
      if (letter == 'P') letter = static_cast<char>('1' - rank);
    }
    Result<Schedule> schedule = ParseScheduleText(text);
    EXPECT_TRUE(schedule.ok()) << schedule.status().message();
    return schedule.ok() ? schedule.value() : Schedule{};
  };
  return VerifyPlan(collective, Placement::OneNode(2), 0, program);
}

std::string GatherError(std::size_t line, const std::string& instead) {
  std::vector<std::string> lines = {
      "lag 0  wait P mark 1 c-2  while longest has c  unless resident",
      "lag 0  copy stage(M)[0] <- input[0]  while input[0] has c  unless resident",
      "lag 0  signal all mark 0  while longest has c  unless resident",
      "lag 1  copy output[M] <- input[0]  while input[0] has c",
      "lag 1  wait P mark 0 c  while output[P] has c",
      "lag 1  get output[P] <- stage(P)[0]=input[0]  while output[P] has c",
      "lag 1  signal all mark 1  while longest has c+2"};
  if (!instead.empty()) lines[line] = instead;
  return VerifyBoth(Collective::kAllGather,
                    "all_gather test rank M of 2 sub_slots 1 parts 1 period 1", lines)
      .message();
}

TEST(ResidentTest, AcceptsWhatIsRight) { EXPECT_EQ(GatherError(0, ""), ""); }

TEST(ResidentTest, WhatIsNotAlwaysStagedNeedsAnOrigin) {
  EXPECT_THAT(GatherError(5, "lag 1  get output[P] <- stage(P)[0]  while output[P] has c"),
              HasSubstr("is not there if rank 0 is resident"));
}

TEST(ResidentTest, WhatIsAlwaysStagedMustNotRestOnASignalThatStandsFromTheStart) {
  EXPECT_THAT(GatherError(1, "lag 0  copy stage(M)[0] <- input[0]  while input[0] has c"),
              HasSubstr("may be writing it"));
}

TEST(ResidentTest, WaitThatEveryRankNeedsMustNotBeLeftOut) {
  EXPECT_THAT(GatherError(4, "lag 1  wait P mark 0 c  while output[P] has c  unless resident"),
              HasSubstr("may be writing it"));
}

TEST(ResidentTest, SignalThatSaysMoreMustNotStandFromTheStart) {
  // That the peer's stage has been read: a resident rank would say so before it has.
  EXPECT_THAT(GatherError(6, "lag 1  signal all mark 1  while longest has c+2  unless resident"),
              HasSubstr("may be reading"));
}

TEST(ResidentTest, OriginMustBeWhatLiesInTheSlot) {
  const std::vector<std::string> lines = {
      "lag 0  wait P mark 1 c-2  while input[P] has c  unless resident",
      "lag 0  copy stage(M)[0] <- input[P]  while input[P] has c  unless resident",
      "lag 0  signal all mark 0  while longest has c  unless resident",
      "lag 1  wait P mark 0 c  while input[M] has c",
      "lag 1  reduce output[0] <- input[M]:M stage(P)[0]=input[P]:P  while output[0] has c",
      "lag 1  signal all mark 1  while longest has c+2"};
  const std::string error =
      VerifyBoth(Collective::kReduceScatter,
                 "reduce_scatter test rank M of 2 sub_slots 1 parts 1 period 1", lines)
          .message();
  EXPECT_THAT(error, HasSubstr("stage(0)[0], which holds chunk 0 of rank 0's input[1]"));
}

TEST(ResidentTest, InputsInPlaceMustNotBeReadWhileTheOutputReplacesThem) {
  // One-shot: each rank may finish a chunk while the other still reads that chunk of its input.
  const auto program = [](int rank) {
    const std::string me = std::to_string(rank);
    const std::string peer = std::to_string(1 - rank);
    const std::string terms =
        rank == 0 ? "input[0]:0 stage(1)[0]=input[0]:1" : "stage(0)[0]=input[0]:0 input[0]:1";
    const std::string text =
        "all_reduce test rank " + me + " of 2 sub_slots 1 parts 1 period 1\n" + "  lag 0  wait " +
        peer + " mark 1 c-2  while input[0] has c  unless resident\n" + "  lag 0  copy stage(" +
        me + ")[0] <- input[0]  while input[0] has c  unless resident\n" +
        "  lag 0  signal all mark 0  while longest has c  unless resident\n" + "  lag 1  wait " +
        peer + " mark 0 c  while output[0] has c\n" + "  lag 1  reduce output[0] <- " + terms +
        "  while output[0] has c\n" + "  lag 1  signal all mark 1  while longest has c+2\n";
    return ParseScheduleText(text).value();
  };
  const Status status = VerifyPlan(Collective::kAllReduce, Placement::OneNode(2), 0, program);
  EXPECT_THAT(status.message(), HasSubstr("where it lies, which the output may have replaced"));
}

}  // namespace
}  // namespace tidegate
