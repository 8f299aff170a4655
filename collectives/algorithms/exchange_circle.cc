// Everybody to everybody, one by one, in turns that keep every member busy and none doubly so.
//
// Cost among m members, for blocks of s bytes: alpha + (m-1) s beta in m-1 turns, which do not wait
// for each other: one round; in groups two, since a block from another group is passed on inside.
// Extra memory: room for the m-1 blocks that arrive, of two chunks; backwards also for what is
// staged inside the node, which makes room after some steps. Order of reduction, backwards: that of
// the flow; a sum is passed on, and rounded for that, by one member of its group at most.
//
// Source: inside a group, the turns of a round-robin tournament by the circle method (T. P.
// Kirkman, Cambridge and Dublin Mathematical Journal 2, 1847); exchange.h says what this library
// adds.

#include <algorithm>
#include <limits>
#include <vector>

#include "collectives/algorithms/exchange.h"
#include "common/check.h"

namespace tidegate {
namespace {

/// How many turns to take together: at least `wanted` if a half of a round of `group` turns has so
/// many, and a divisor of it. Turns of one time are so of one round, on which the next one depends,
/// and of half of it at most, so that this needs not wait.
int WithinARound(int wanted, int group) {
  for (int together = wanted; 2 * together <= group; ++together)
    if (group % together == 0) return together;
  for (int together = std::min(wanted, group / 2); together > 1; --together)
    if (group % together == 0) return together;
  return 1;
}

/// The turns, and at which times they are taken.
class Turns {
 public:
  Turns(int members, int groups, int most_times) {
    const int turns = members - 1;
    if (most_times <= 0 || turns <= most_times) return;
    // The last time may have as many turns again: nothing waits for them.
    together_ = (turns + most_times) / (most_times + 1);
    if (groups > 1) together_ = WithinARound(together_, members / groups);
    last_time_ = std::max(most_times, (turns - 1) / together_) - 1;
  }

  int together() const { return together_; }
  int TimeOf(int turn) const { return std::min(turn / together_, last_time_); }

 private:
  int together_ = 1;
  int last_time_ = std::numeric_limits<int>::max();
};

}  // namespace

Exchange CircleExchange(int me, int members, const CircleOptions& options) {
  const int groups = options.groups;
  TIDEGATE_CHECK(groups >= 1 && members % groups == 0);
  const int group = members / groups;
  const int own = me / group;
  const int place = me % group;
  const auto member = [&](int of, int at) {
    return (of % groups + groups) % groups * group + (at % group + group) % group;
  };
  Exchange exchange{.name = "circle", .members = members};
  const Turns turns(members, groups, options.most_times);
  exchange.shares_words = true;
  exchange.back_window = 4 * turns.together();
  exchange.node_flight = options.node_flight;
  exchange.wire_flight = std::max(1, options.wire_flight / turns.together());
  const auto add = [&](int to, int from, int sent, int received, bool is_last_hop) {
    const int turn = static_cast<int>(exchange.steps.size());
    exchange.steps.push_back({.time = turns.TimeOf(turn),
                              .to = to,
                              .from = from,
                              .sent = {sent},
                              .received = {received},
                              .offset = turn,
                              .is_last_hop = is_last_hop});
  };
  // Of k even, two places each are alone in the turns with even numbers, which come first: half a
  // round before the others of the group get what they have by then.
  std::vector<int> order;
  for (int parity = 0; parity < 2; ++parity)
    for (int turn = parity; turn < group; turn += 2) order.push_back(turn);
  for (int round = 0; round + 1 < groups; ++round) {
    for (const int turn : order) {
      const int other = member(0, turn - place) % group;
      if (other == place) {
        add(member(own + round + 1, place), member(own - round - 1, place), me,
            member(own - round - 1, place), /*is_last_hop=*/false);
      } else {
        add(member(own, other), member(own, other), member(own - round, place),
            member(own - round, other), /*is_last_hop=*/true);
      }
    }
  }
  for (int distance = 1; distance < group; ++distance)
    add(member(own, place + distance), member(own, place - distance),
        member(own - groups + 1, place), member(own - groups + 1, place - distance),
        /*is_last_hop=*/true);
  if (groups > 1) {
    const int latest = group % 2 == 0 ? group / 2 - 1 : group - 1;
    const int apart = turns.TimeOf(group) - turns.TimeOf(latest);
    exchange.wire_flight = std::clamp(apart - 1, 1, exchange.wire_flight);
  }
  if (!exchange.steps.empty()) exchange.times = exchange.steps.back().time + 1;
  exchange.longest_stay = std::max(1, exchange.times);
  return exchange;
}

}  // namespace tidegate
