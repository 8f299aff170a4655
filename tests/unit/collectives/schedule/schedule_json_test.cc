#include "collectives/schedule/schedule_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/schedule/builder.h"
#include "collectives/schedule/check_schedule.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleJsonTest, OneStepIsOneLineAndReadsBackAsEqual) {
  ScheduleBuilder builder("example", Collective::kReduce, 1, 4);
  builder.Root(1).SubSlots(2).Parts(4);
  builder.Copy(Stage(1, 0), Input(2));
  builder.Signal(kReady, kLongestBlock, -2);
  builder.Put(Stage(2, 1), {Input(1)});
  builder.Lag(1);
  builder.Wait(3, kReady, {Buffer::kInput, -1, 0, 2, 3}, kPreviousInSlot);
  builder.Reduce(Stage(0, 1), {{Stage(0, 0), 0}, {Input(1), -1}}, Input(1), /*partial=*/true);
  const Schedule schedule = builder.Build();
  ASSERT_EQ(CheckSchedule(schedule).message(), "");
  const std::string text = ToJson(schedule);
  EXPECT_EQ(
      text,
      R"({"tidegate_schedule": 1, "collective": "reduce", "name": "example", "rank": 1, "ranks": 4, )"
      R"("root": 1, "sub_slots": 2, "parts": 4, "period": 1,
"steps": [
{"do": "copy", "dst": "stage(1)[0]", "src": "input[2]", "while": "input[2]"},
{"do": "signal", "mark": 0, "while": "longest", "has": "c-2"},
{"do": "put", "dst": "stage(2)[1]", "src": "input[1]", "while": "input[1]"},
{"do": "wait", "lag": 1, "peer": 3, "mark": 0, "chunk": "c-2", "while": "input[0+2x3]"},
{"do": "partial", "lag": 1, "dst": "stage(0)[1]", "operands": ["stage(0)[0]:0", "input[1]"], )"
      R"("while": "input[1]"}]}
)");
  const Result<Schedule> read = ParseScheduleJson(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value(), schedule);
}

/// A schedule of one step, written by hand.
std::string ErrorOfStep(const std::string& step) {
  const Result<Schedule> read = ParseScheduleJson(
      R"({"ranks": 2, "rank": 1, "collective": "all_gather", "name": "direct", "period": 1,
          "sub_slots": 1, "parts": 1, "comment": "by hand", "tidegate_schedule": 1, "steps": [)" +
      step + "]}");
  return read.ok() ? "" : read.status().message();
}

TEST(ScheduleJsonTest, TakesMembersInAnyOrderAndWithTheirDefaults) {
  EXPECT_EQ(ErrorOfStep(""), "");
  EXPECT_EQ(ErrorOfStep(R"({"while": "longest", "mark": 1, "do": "signal", "peer": "all"})"), "");
  EXPECT_EQ(ErrorOfStep(R"({"while": "longest", "mark": 1, "do": "signal", "lag": 0})"), "");
}

TEST(ScheduleJsonTest, ErrorsNamePathValueAndWhatIsExpected) {
  EXPECT_EQ(ErrorOfStep(R"({"do": "fetch"})"),
            "$.steps[0].do: \"fetch\": expected copy, get, put, reduce, partial, signal or wait");
  EXPECT_THAT(
      ErrorOfStep(R"({"do": "get", "dst": "output", "src": "stage(0)[0]", "while": "output[0]"})"),
      HasSubstr("$.steps[0].dst: \"output\": expected a slice such as"));
  EXPECT_THAT(ErrorOfStep(R"({"do": "get", "dst": "output[0]", "src": 5, "while": "output[0]"})"),
              HasSubstr("$.steps[0].src: 5: expected a slice such as"));
  EXPECT_EQ(ErrorOfStep(R"({"do": "signal", "mark": 0})"),
            "$.steps[0]: the key \"while\" is missing");
  EXPECT_THAT(ErrorOfStep(R"({"do": "signal", "mark": 0, "src": "input[0]", "while": "longest"})"),
              HasSubstr("$.steps[0]: unknown key \"src\"; known are do, lag, peer, mark"));
  EXPECT_THAT(ErrorOfStep(R"({"do": "signal", "mark": 1e99, "while": "longest"})"),
              HasSubstr("$.steps[0].mark: a whole number from"));
  EXPECT_THAT(ErrorOfStep(R"({"do": "signal", "mark": 9999999999, "while": "longest"})"),
              HasSubstr("$.steps[0].mark: a whole number from"));
  EXPECT_THAT(ErrorOfStep("[]"), HasSubstr("$.steps[0]: an object is wanted here"));
  EXPECT_THAT(
      ErrorOfStep(
          R"({"do": "reduce", "dst": "output[0]", "operands": [["x"]], "while": "longest"})"),
      HasSubstr("$.steps[0].operands[0]: an object or array: expected a slice"));
}

TEST(ScheduleJsonTest, FaultsAreReportedWithTheirPath) {
  EXPECT_EQ(ErrorOfStep(R"({"do": "get", "dst": "output[2]", "src": "stage(0)[0]",
                            "while": "output[2]"})"),
            "$.steps[0]: the extent output[2] reaches from 2 to 2; there are 2 such blocks on this "
            "rank, from 0");
  EXPECT_THAT(
      ErrorOfStep(R"({"do": "reduce", "dst": "output[0]", "operands": [], "while": "output[0]"})"),
      HasSubstr("$.steps[0]: a reduction needs an operand"));
}

TEST(ScheduleJsonTest, RefusesOtherVersionsAndOtherText) {
  const auto error = [](std::string_view text) {
    return ParseScheduleJson(text, {.bytes = 1000}).status().message();
  };
  EXPECT_EQ(error("{}"), "$: the key \"tidegate_schedule\" is missing");
  EXPECT_THAT(error(R"({"tidegate_schedule": 2})"),
              HasSubstr("$.tidegate_schedule: a whole number"));
  EXPECT_THAT(error(R"({"tidegate_schedule": 1, "collective": "all_gather", "name": "x", "rank": 0,
                        "ranks": 1000000000, "sub_slots": 1, "parts": 1, "period": 1, "steps": []})"),
              HasSubstr("$: ranks is 1000000000, and must be 1 to 1048576"));
  EXPECT_THAT(error(R"({"tidegate_schedule": 1, "collective": "barrier", "name": "x", "rank": 0,
                        "root": 0, "ranks": 1, "sub_slots": 1, "parts": 1, "period": 1,
                        "steps": []})"),
              HasSubstr("$: root is 0"));
  EXPECT_THAT(error(R"({"tidegate_schedule": 1, "collective": "all_to_all", "name": "x", "rank": 0,
                        "ranks": 1, "sub_slots": 1, "parts": 1, "period": 1, "even": 1,
                        "steps": []})"),
              HasSubstr("$.even: "));
  EXPECT_THAT(error("{\"tidegate_schedule\": 1,\n \"rank\" 0}"), HasSubstr("line 2, column"));
  EXPECT_THAT(error(std::string(1001, ' ')), HasSubstr("at most 1000 B"));
}

}  // namespace
}  // namespace tidegate
