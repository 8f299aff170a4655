#include "collectives/schedule/schedule.h"

#include <algorithm>
#include <array>

namespace tidegate {

std::string_view NameOf(Collective collective) {
  static constexpr std::array<std::string_view, kCollectives> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",
      "gather",     "scatter",        "all_to_all", "barrier"};
  const auto index = static_cast<std::size_t>(collective);
  // Names end up in error messages about values received from a peer: show, do not throw.
  return index < kNames.size() ? kNames[index] : "unknown collective";
}

std::optional<Collective> CollectiveNamed(std::string_view name) {
  for (int i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    if (NameOf(collective) == name) return collective;
  }
  return std::nullopt;
}

bool IsRooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

bool Reduces(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllReduce ||
         collective == Collective::kReduce;
}

int Schedule::MaxLag() const {
  int lag = 0;
  for (const Step& step : steps) lag = std::max(lag, step.lag);
  return lag;
}

int Schedule::Marks() const {
  int marks = 0;
  for (const Step& step : steps)
    if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait)
      marks = std::max(marks, step.mark + 1);
  return marks;
}

BlockCounts BlocksOf(const Schedule& schedule) { return BlocksOf(schedule, schedule.rank); }

BlockCounts BlocksOf(const Schedule& schedule, int rank) {
  const bool is_root = rank == schedule.root;
  switch (schedule.collective) {
    case Collective::kAllGather:
      return {1, schedule.ranks};
    case Collective::kReduceScatter:
      return {schedule.ranks, 1};
    case Collective::kAllReduce:
      return {schedule.parts, schedule.parts};
    case Collective::kBroadcast:
      return {is_root ? schedule.parts : 0, schedule.parts};
    case Collective::kReduce:
      return {schedule.parts, is_root ? schedule.parts : 0};
    case Collective::kGather:
      return {1, is_root ? schedule.ranks : 0};
    case Collective::kScatter:
      return {is_root ? schedule.ranks : 0, 1};
    case Collective::kAllToAll:
      return {schedule.ranks, schedule.ranks};
    case Collective::kBarrier:
      return {0, 0};
  }
  return {0, 0};
}

}  // namespace tidegate
