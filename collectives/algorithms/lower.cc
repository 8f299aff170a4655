#include "collectives/algorithms/lower.h"

#include <algorithm>
#include <vector>

#include "collectives/algorithms/lowering.h"
#include "common/check.h"

namespace tidegate {
namespace {

Slice TheInput(const BlockRun&) { return Input(0); }
Slice InputBlocks(const BlockRun& run) { return lowering::OfBlocks(Buffer::kInput, run); }

Slice TheOutput(int) { return Output(0); }
Slice OutputBlock(int block) { return Output(block); }

}  // namespace

Schedule Spread(const Flow& flow, Collective collective) {
  ScheduleBuilder builder(flow.name, collective, flow.rank, flow.ranks);
  builder.Root(flow.root).SubSlots(flow.slots).Parts(flow.parts).Period(flow.period);
  const bool gathers = collective == Collective::kAllGather;
  const auto origin = [gathers, root = flow.root](int owner, int block) {
    if (gathers) return owner == block ? 0 : -1;
    return owner == root ? block : -1;
  };
  const lowering::Frame frame{
      .source = gathers ? TheInput : InputBlocks, .origin = origin, .copies_own = gathers};
  lowering::WriteSpread(flow, frame, builder);
  return builder.Build();
}

Schedule Collect(const Flow& flow, Collective collective) {
  ScheduleBuilder builder(flow.name, collective, flow.rank, flow.ranks);
  builder.Root(flow.root).SubSlots(flow.back_slots).Parts(flow.parts).Period(flow.back_period);
  lowering::WriteCollect(flow, InputBlocks,
                         collective == Collective::kReduce ? OutputBlock : TheOutput, builder);
  return builder.Build();
}

Schedule CollectAndSpread(const Flow& back, const Flow& forth) {
  ScheduleBuilder builder(forth.name, Collective::kAllReduce, forth.rank, forth.ranks);
  builder.SubSlots(back.back_slots + forth.slots)
      .Parts(forth.ranks)
      .Period(std::max(back.back_period, forth.period));
  TIDEGATE_CHECK(forth.own == std::vector<int>{forth.rank} && back.own == forth.own);
  lowering::WriteCollect(back, InputBlocks, OutputBlock, builder);
  const lowering::Frame frame{
      .source = [](const BlockRun& run) { return lowering::OfBlocks(Buffer::kOutput, run); },
      .origin = [](int, int) { return -1; },
      .first_mark = 2 * back.ids,
      .first_lag = back.times,
      .first_slot = back.back_slots};
  lowering::WriteSpread(forth, frame, builder);
  return builder.Build();
}

}  // namespace tidegate
