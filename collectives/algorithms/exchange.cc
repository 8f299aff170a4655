#include "collectives/algorithms/exchange.h"

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <utility>

#include "common/check.h"

namespace tidegate {
namespace {

/// Adds the step that moves the blocks of `offsets` (how far behind the sender their owners are,
/// ascending) by `distance` to the right; its time is the next one. The blocks are moved in the
/// order of their owners, so that they lie in one slice, or two where they wrap around.
void AddShift(Exchange& exchange, int me, int distance, const std::vector<int>& offsets) {
  const int members = exchange.members;
  ExchangeStep step;
  step.time = exchange.times++;
  step.to = (me + distance) % members;
  step.from = (me - distance + members) % members;
  for (const int offset : std::views::reverse(offsets)) {
    step.sent.push_back((me - offset + members) % members);
    step.received.push_back((step.from - offset + members) % members);
  }
  if (!exchange.steps.empty()) {
    const ExchangeStep& before = exchange.steps.back();
    step.offset = before.offset + static_cast<int>(before.sent.size());
  }
  exchange.steps.push_back(std::move(step));
}

void Finish(Exchange& exchange) {
  if (!exchange.steps.empty()) exchange.steps.back().is_last_hop = true;
}

/// The same messages, each cut into some of at most 1/`segments` of all blocks: a time each.
Exchange InSegments(const Exchange& whole, int segments) {
  Exchange exchange{.name = "segmented_" + whole.name, .members = whole.members};
  const auto most = static_cast<std::size_t>(std::max(1, whole.members / segments));
  for (const ExchangeStep& step : whole.steps) {
    for (std::size_t begin = 0; begin < step.sent.size(); begin += most) {
      const auto first = static_cast<std::ptrdiff_t>(begin);
      const auto last = static_cast<std::ptrdiff_t>(std::min(begin + most, step.sent.size()));
      ExchangeStep segment = step;
      segment.time = exchange.times++;
      segment.offset = step.offset + static_cast<int>(begin);
      segment.sent.assign(step.sent.begin() + first, step.sent.begin() + last);
      segment.received.assign(step.received.begin() + first, step.received.begin() + last);
      exchange.steps.push_back(std::move(segment));
    }
  }
  exchange.longest_stay = exchange.times;
  return exchange;
}

}  // namespace

Exchange PairwiseExchange(int me, int members) {
  Exchange exchange{.name = "pairwise", .members = members};
  for (int distance = 1; distance < members; ++distance) AddShift(exchange, me, distance, {0});
  for (ExchangeStep& step : exchange.steps) {
    step.time = 0;
    step.is_last_hop = true;
  }
  exchange.times = members > 1 ? 1 : 0;
  return exchange;
}

Exchange RingExchange(int me, int members) {
  Exchange exchange{.name = "ring", .members = members};
  for (int hop = 0; hop + 1 < members; ++hop) AddShift(exchange, me, 1, {hop});
  Finish(exchange);
  return exchange;
}

Exchange BruckExchange(int me, int members) {
  Exchange exchange{.name = "bruck", .members = members};
  for (int distance = 1; distance < members; distance *= 2) {
    std::vector<int> offsets;
    for (int offset = 0; offset < distance && offset + distance < members; ++offset)
      offsets.push_back(offset);
    AddShift(exchange, me, distance, offsets);
  }
  Finish(exchange);
  exchange.longest_stay = exchange.times;
  return exchange;
}

Exchange FarFirstExchange(int me, int members) {
  Exchange exchange{.name = "far_first", .members = members};
  int distance = 1;
  while (2 * distance < members) distance *= 2;
  for (; distance >= 1 && members > 1; distance /= 2) {
    std::vector<int> offsets;
    for (int offset = 0; offset + distance < members; offset += 2 * distance)
      offsets.push_back(offset);
    AddShift(exchange, me, distance, offsets);
  }
  Finish(exchange);
  exchange.longest_stay = exchange.times;
  return exchange;
}

template <int kSegments>
Exchange SegmentedBruckExchange(int me, int members) {
  return InSegments(BruckExchange(me, members), kSegments);
}
template Exchange SegmentedBruckExchange<16>(int me, int members);
template Exchange SegmentedBruckExchange<32>(int me, int members);

Exchange SegmentedFarFirstExchange(int me, int members) {
  return InSegments(FarFirstExchange(me, members), 32);
}

Exchange RecursiveDoublingExchange(int me, int members) {
  TIDEGATE_CHECK(IsPowerOfTwo(members));
  Exchange exchange{.name = "recursive_doubling", .members = members};
  for (int distance = 1; distance < members; distance *= 2) {
    ExchangeStep step;
    step.time = exchange.times++;
    step.to = step.from = me ^ distance;
    step.offset = distance - 1;
    for (int i = 0; i < distance; ++i) {
      step.sent.push_back((me & ~(distance - 1)) + i);
      step.received.push_back((step.from & ~(distance - 1)) + i);
    }
    exchange.steps.push_back(std::move(step));
  }
  Finish(exchange);
  exchange.longest_stay = exchange.times;
  return exchange;
}

}  // namespace tidegate
