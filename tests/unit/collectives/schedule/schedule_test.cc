#include "collectives/schedule/schedule.h"

#include <gtest/gtest.h>

#include "collectives/schedule/builder.h"

namespace tidegate {
namespace {

TEST(ScheduleTest, TextNamesEveryStep) {
  ScheduleBuilder builder("example", Collective::kReduceScatter, 1, 2);
  builder.SubSlots(1).Lag(0);
  builder.Wait(0, kConsumed, Input(0), kPreviousInSlot);
  builder.Copy(Stage(1, 0), Input(0));
  builder.Signal(kReady, kLongestBlock);
  builder.Lag(1);
  builder.Wait(0, kReady, Output(0));
  builder.Reduce(Output(0), {{Stage(0, 0), 0}, {Input(1), 1}}, Output(0));
  builder.Signal(kConsumed, kLongestBlock, 2);
  const Schedule schedule = builder.Build();
  EXPECT_EQ(ToText(schedule),
            "reduce_scatter example rank 1 of 2 sub_slots 1 parts 1 period 1\n"
            "  lag 0  wait 0 mark 1 c-2  while input[0] has c\n"
            "  lag 0  copy stage(1)[0] <- input[0]  while input[0] has c\n"
            "  lag 0  signal all mark 0  while longest has c\n"
            "  lag 1  wait 0 mark 0 c  while output[0] has c\n"
            "  lag 1  reduce output[0] <- stage(0)[0]:0 input[1]:1  while output[0] has c\n"
            "  lag 1  signal all mark 1  while longest has c+2\n");
  EXPECT_EQ(schedule.MaxLag(), 1);
}

TEST(ScheduleTest, CopyTakesItsLengthFromTheCallersBlock) {
  ScheduleBuilder builder("example", Collective::kAllGather, 0, 2);
  builder.Copy(Stage(0, 0), Input(3));
  builder.Get(Output(1), Stage(1, 0));
  const Schedule schedule = builder.Build();
  EXPECT_EQ(schedule.steps[0].extent, Input(3));
  EXPECT_EQ(schedule.steps[1].extent, Output(1));
}

}  // namespace
}  // namespace tidegate
