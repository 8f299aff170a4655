// Exchanges: ways for each of m members to get the block of every other. A flow says what members
// and blocks are: ranks and shards (flow_flat.cc), nodes and columns (flow_column.cc), or leaders
// and all that a node has (flow_leader.cc).
//
// Cost, for blocks of s bytes:
//                               rounds                   time
//   pairwise                    1                        alpha + (m-1) s beta
//   ring                        m-1                      (m-1) (alpha + s beta)
//   bruck, far_first            ceil(log2 m)             ceil(log2 m) alpha + (m-1) s beta
//   recursive_doubling          log2 m, a whole number   the same
//   segmented_*, of k segments  ceil(log2 m) + k         at most k alpha more
// Of bruck and far_first one alpha less where 4m <= 3 * 2^ceil(log2 m), such as of 3, 5, 6 and 12
// members: one message then waits for none.
// Extra memory: room for the m-1 blocks that arrive, of two chunks. Order of reduction, backwards:
// that of the flow; each member that passes a sum on rounds it: none in pairwise, m-2 in a ring, at
// most ceil(log2 m) - 1 in the others.
//
// Sources. Pairwise, recursive doubling: Thakur, Rabenseifner, Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 19(1), 2005. Ring: the same, and, with its transpose
// as an all-reduce, Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", JPDC 69(2), 2009. Bruck: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient
// algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS 8(11),
// 1997. Far first: the all-gather half of PAT, Jeaugey, arXiv 2506.20252. That messages are cut
// into segments is of this library.

#include "collectives/algorithms/exchange.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <ranges>
#include <utility>

#include "common/check.h"

namespace tidegate {
namespace {

/// Places in a circle: those of the members, or of groups of them.
struct Circle {
  int place = 0;  ///< Of this member.
  int places = 1;
  std::function<int(int place)> member;               ///< With whom this one exchanges there.
  std::function<std::vector<int>(int place)> blocks;  ///< What is of that place.
};

/// Adds the step that moves what is of the places `offsets` (how far behind the sender, ascending)
/// by `distance` to the right; its time is the next one. Blocks are moved in the order of their
/// places, so that they lie in one slice, or two where they wrap around.
void AddShift(Exchange& exchange, const Circle& circle, int distance,
              const std::vector<int>& offsets) {
  const auto at = [&](int place) {
    return (place % circle.places + circle.places) % circle.places;
  };
  const int from = at(circle.place - distance);
  ExchangeStep step;
  step.time = exchange.times++;
  step.to = circle.member(at(circle.place + distance));
  step.from = circle.member(from);
  for (const int offset : std::views::reverse(offsets)) {
    const std::vector<int> sent = circle.blocks(at(circle.place - offset));
    const std::vector<int> received = circle.blocks(at(from - offset));
    step.sent.insert(step.sent.end(), sent.begin(), sent.end());
    step.received.insert(step.received.end(), received.begin(), received.end());
  }
  if (!exchange.steps.empty()) {
    const ExchangeStep& before = exchange.steps.back();
    step.offset = before.offset + static_cast<int>(before.sent.size());
  }
  exchange.steps.push_back(std::move(step));
}

Circle AllMembers(int me, int members) {
  return {.place = me,
          .places = members,
          .member = [](int place) { return place; },
          .blocks = [](int place) { return std::vector<int>{place}; }};
}

void AddFarFirst(Exchange& exchange, const Circle& circle) {
  int distance = 1;
  while (2 * distance < circle.places) distance *= 2;
  for (; distance >= 1 && circle.places > 1; distance /= 2) {
    std::vector<int> offsets;
    for (int offset = 0; offset + distance < circle.places; offset += 2 * distance)
      offsets.push_back(offset);
    AddShift(exchange, circle, distance, offsets);
  }
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
  const Circle all = AllMembers(me, members);
  for (int distance = 1; distance < members; ++distance) AddShift(exchange, all, distance, {0});
  for (ExchangeStep& step : exchange.steps) {
    step.time = 0;
    step.is_last_hop = true;
  }
  exchange.times = members > 1 ? 1 : 0;
  return exchange;
}

Exchange RingExchange(int me, int members) {
  Exchange exchange{.name = "ring", .members = members};
  const Circle all = AllMembers(me, members);
  for (int hop = 0; hop + 1 < members; ++hop) AddShift(exchange, all, 1, {hop});
  Finish(exchange);
  return exchange;
}

Exchange BruckExchange(int me, int members) {
  Exchange exchange{.name = "bruck", .members = members};
  const Circle all = AllMembers(me, members);
  for (int distance = 1; distance < members; distance *= 2) {
    std::vector<int> offsets;
    for (int offset = 0; offset < distance && offset + distance < members; ++offset)
      offsets.push_back(offset);
    AddShift(exchange, all, distance, offsets);
  }
  Finish(exchange);
  exchange.longest_stay = exchange.times;
  return exchange;
}

Exchange FarFirstExchange(int me, int members) { return FarFirstExchange(me, members, 1); }

Exchange FarFirstExchange(int me, int members, int group) {
  Exchange exchange{.name = "far_first", .members = members};
  const int groups = members / group;
  const int own = me / group;
  const int place = me % group;
  TIDEGATE_CHECK(groups * group == members);
  const auto at = [group](int of, int among) { return of * group + among; };
  AddFarFirst(exchange, {.place = own,
                         .places = groups,
                         .member = [&](int other) { return at(other, place); },
                         .blocks = [&](int other) { return std::vector<int>{at(other, place)}; }});
  AddFarFirst(exchange, {.place = place,
                         .places = group,
                         .member = [&](int other) { return at(own, other); },
                         .blocks =
                             [&](int other) {
                               std::vector<int> blocks(static_cast<std::size_t>(groups));
                               for (int of = 0; of < groups; ++of)
                                 blocks[static_cast<std::size_t>(of)] = at(of, other);
                               return blocks;
                             }});
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

Exchange SegmentedFarFirstExchange(int me, int members, int group) {
  return InSegments(FarFirstExchange(me, members, group), 32);
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
