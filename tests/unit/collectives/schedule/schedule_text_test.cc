#include "collectives/schedule/schedule_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/schedule/builder.h"
#include "collectives/schedule/check_schedule.h"

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Every kind of step, and every form of slice and chunk.
Schedule Example() {
  ScheduleBuilder builder("ex-4.b", Collective::kReduce, 1, 4);
  builder.Root(1).SubSlots(9).Parts(8).Period(3);
  builder.Wait(kAllPeers, kConsumed, kLongestBlock, kPreviousInSlot, 2);
  builder.Copy(Stage(1, 0), Input(2));
  builder.Copy({Buffer::kStage, 1, 1, 3, 2}, {Buffer::kInput, -1, 0, 3, 3});
  builder.Signal(kReady, kLongestBlock);
  builder.Lag(12);
  builder.Get(Output(7), Stage(3, 8));
  builder.Put(Stage(2, 4), Input(1));
  builder.Reduce(Stage(0, 1), {{Stage(0, 0), 0}, {Input(1), 1}, {Stage(1, 3), -1}}, Output(1),
                 true);
  builder.Reduce({Buffer::kOutput, -1, 1, 2, 4}, {{{Buffer::kInput, -1, 1, 2, 4}, 1}},
                 {Buffer::kInput, -1, 1, 2, 4});
  builder.Wait(3, 5, Output(0), 1, -2);
  builder.Signal(7, Input(0), -127, 0);
  return builder.Build();
}

TEST(ScheduleTextTest, ReadsBackAnEqualSchedule) {
  const Schedule schedule = Example();
  ASSERT_EQ(CheckSchedule(schedule).message(), "");
  const Result<Schedule> read = ParseScheduleText(ToText(schedule));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value(), schedule);
}

TEST(ScheduleTextTest, AScheduleWithoutStepsIsOneLine) {
  const std::string text = "barrier arrival rank 2 of 3 sub_slots 1 parts 1 period 1\n";
  const Result<Schedule> read = ParseScheduleText(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(ToText(read.value()), text);
}

constexpr std::string_view kHeader = "all_gather direct rank 1 of 2 sub_slots 1 parts 1 period 1\n";

std::string ErrorOf(std::string_view text) {
  const Result<Schedule> read = ParseScheduleText(text);
  return read.ok() ? "" : read.status().message();
}
std::string ErrorOfStep(const std::string& step) { return ErrorOf(std::string(kHeader) + step); }

TEST(ScheduleTextTest, ErrorsNameLineWordAndWhatIsExpected) {
  EXPECT_EQ(ErrorOfStep("  lag 0  fetch output[0] <- input[0]  while output[0] has c\n"),
            "line 2: \"fetch\": expected copy, get, put, reduce, partial, signal or wait");
  EXPECT_EQ(ErrorOfStep("  lag 0  get output[0] stage(0)[0]  while output[0] has c\n"),
            "line 2: \"stage(0)[0]\": expected <-");
  EXPECT_THAT(ErrorOfStep("  lag 0  get outputs[0] <- stage(0)[0]  while output[0] has c\n"),
              HasSubstr("line 2: \"outputs[0]\": expected a slice such as"));
  EXPECT_THAT(
      ErrorOfStep("  lag 0  get output[0] <- stage(0)[99999999999]  while output[0] has c\n"),
      HasSubstr("line 2: \"stage(0)[99999999999]\": expected"));
  EXPECT_EQ(ErrorOfStep("  lag x  signal all mark 0  while longest has c\n"),
            "line 2: \"x\": expected a whole number of at most 10 digits");
  EXPECT_EQ(ErrorOfStep("  lag 0  signal all mark 0  while longest has d\n"),
            "line 2: \"d\": expected c, c+N or c-N with N up to 127");
  EXPECT_EQ(ErrorOfStep("  lag 0  wait all mark 0 c+128  while longest has c\n"),
            "line 2: \"c+128\": expected c, c+N or c-N with N up to 127");
  EXPECT_EQ(ErrorOfStep("  lag 0  signal all mark 0  while longest\n"),
            "line 2: the line ends: expected has");
  EXPECT_EQ(ErrorOfStep("  lag 0  signal all mark 0  while longest has c c\n"),
            "line 2: \"c\": expected the end of the line");
  EXPECT_THAT(ErrorOf("all_gathers direct rank 0 of 2\n"),
              HasSubstr("line 1: \"all_gathers\": expected all_gather, reduce_scatter"));
  EXPECT_EQ(ErrorOf("broadcast tree rank 0 of 2 sub_slots 1 parts 1 period 1\n"),
            "line 1: \"sub_slots\": expected root");
  EXPECT_EQ(ErrorOf("all_to_all column rank 0 of 2 sub_slots 1 parts 1 period 1 evn\n"),
            "line 1: \"evn\": expected the end of the line");
  EXPECT_THAT(ErrorOf(""), HasSubstr("line 1: the line ends: expected all_gather"));
}

TEST(ScheduleTextTest, FaultsAreReportedWithTheirLine) {
  EXPECT_EQ(ErrorOf("all_gather direct rank 2 of 2 sub_slots 1 parts 1 period 1\n"),
            "line 1: rank is 2, and must be 0 to 1");
  EXPECT_EQ(ErrorOf("all_gather direct rank 1 of 2 sub_slots 1 parts 1 period 1 even\n"),
            "line 1: even is of all_to_all, gather and scatter alone");
  EXPECT_EQ(
      ErrorOfStep("  lag 0  signal all mark 0  while longest has c\n"
                  "  lag 1  get output[2] <- stage(0)[0]  while output[0] has c\n"),
      "line 3: the destination output[2] reaches from 2 to 2; there are 2 such blocks on this "
      "rank, from 0");
}

TEST(ScheduleTextTest, OneScheduleHasOneText) {
  const std::string good = "  lag 0  get output[0] <- stage(0)[0]  while output[0] has c\n";
  ASSERT_EQ(ErrorOfStep(good), "");
  for (const std::string other :
       {" lag 0  get output[0] <- stage(0)[0]  while output[0] has c\n",
        "  lag 0  get output[0] <- stage(0)[0]  while output[0] has c \n",
        "  lag 00  get output[0] <- stage(0)[0]  while output[0] has c\n",
        "  lag -0  get output[0] <- stage(0)[0]  while output[0] has c\n",
        "  lag 0  get output[0+1] <- stage(0)[0]  while output[0] has c\n",
        "  lag 0  get output[0x1] <- stage(0)[0]  while output[0] has c\n",
        "  lag 0  get output[0] <- stage(0)[0]  while output[0] has c+0\n"}) {
    EXPECT_THAT(ErrorOfStep(other), HasSubstr("line 2: ")) << other;
  }
  EXPECT_THAT(ErrorOfStep("  lag 0  get output[0] <- stage(0)[0] while output[0] has c\n"),
              AllOf(HasSubstr("write \"  lag 0  get"), HasSubstr("has c\"")));
  EXPECT_EQ(ErrorOf(kHeader.substr(0, kHeader.size() - 1)),
            "line 1: a line break must end this line");
  EXPECT_THAT(ErrorOfStep("\n"), HasSubstr("line 2: the line ends: expected lag"));
}

TEST(ScheduleTextTest, RefusesMoreTextThanItsLimit) {
  EXPECT_THAT(ErrorOf(std::string(kMaxScheduleTextBytes + 1, ' ')), HasSubstr("at most 64 MiB"));
}

}  // namespace
}  // namespace tidegate
