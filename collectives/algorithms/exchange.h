#pragma once

#include <string>
#include <vector>

namespace tidegate {

/// One message out and one in of an all-to-all-informing exchange, as one member sees it. Members
/// are ranks or nodes; what belongs to member m is called block m.
struct ExchangeStep {
  int time = 0;  ///< Steps of one time do not depend on each other.
  int to = 0;
  int from = 0;
  std::vector<int> sent = {};      ///< Held before this time.
  std::vector<int> received = {};  ///< In the order in which `from` sends them.
  int offset = 0;                  ///< Blocks received in earlier steps, the same for all members.
  bool is_last_hop = false;        ///< Nobody passes on what arrives.
};

/// A way for every member to get every block, as one member sees it. Which one is best depends on
/// the latency, the size and the shape of the network: the formulas stand at each.
struct Exchange {
  std::string name;
  int members = 1;
  int times = 0;
  std::vector<ExchangeStep> steps = {};
  /// Run backwards, the times for which the last partial sum waits for the others.
  int longest_stay = 1;
  int wire_flight = 1;  ///< Forwards: times from sending a message to waiting for it,
  int node_flight = 1;  ///< and from offering what came inside the node to reading it there.
  /// Steps of one time share their progress words: told of as one, when the last is done.
  bool shares_words = false;
  /// Run backwards, after how many steps what was staged inside a node for one of them makes room;
  /// 0: never. Only where each step moves one block.
  int back_window = 0;
};
using ExchangeMaker = Exchange (*)(int me, int members);

/// Everybody to everybody at once: alpha + (m-1) s beta. Fewest rounds, and the most messages.
Exchange PairwiseExchange(int me, int members);
/// To the right neighbour what came last from the left: (m-1) (alpha + s beta). Least sensitive to
/// slow paths between far members, for each talks to its neighbours alone.
Exchange RingExchange(int me, int members);
/// Distances 1, 2, 4, ..., everything held each time: ceil(log2 m) alpha + (m-1) s beta. The last,
/// largest messages travel farthest. Bruck et al., IEEE TPDS 8(11), 1997.
Exchange BruckExchange(int me, int members);
/// Distances ..., 4, 2, 1: as Bruck's, but the smallest messages travel farthest. The all-gather
/// half of PAT (Jeaugey, arXiv 2506.20252).
Exchange FarFirstExchange(int me, int members);
/// First among groups of `group` consecutive members and then inside each, so that each block
/// enters a group once. REQUIRES: `group` divides `members`.
Exchange FarFirstExchange(int me, int members, int group);
/// Bruck's, its long messages cut into some of at most 1/16 or 1/32 of all blocks, one after the
/// other: up to 16 or 32 rounds more, in which what goes on inside the nodes overlaps with the wire
/// within one message instead of only between chunks. Backwards that is what keeps the wire busy,
/// because partial sums that wait let chunks follow each other only at half the rounds.
template <int kSegments>
Exchange SegmentedBruckExchange(int me, int members);
/// The same of far first among groups, of at most 1/32.
Exchange SegmentedFarFirstExchange(int me, int members, int group);
/// How a circle exchange goes on at once; what suits it depends on the direction.
struct CircleOptions {
  int groups = 1;       ///< Of equally many consecutive members, such as those below one switch.
  int most_times = 0;   ///< As many steps are taken together as it takes to need no more; 0: one.
  int wire_flight = 1;  ///< At most,
  int node_flight = 1;  ///< in the same way.
};
/// Everybody to everybody one by one, in turns in which each member sends one block and gets one:
/// alpha + (m-1) s beta, and at the same time no two send to the same member.
///
/// In groups each block enters each other group once: from its owner to the member of its place
/// there, which hands it to the others of the group. Inside a group of k the turns are those of a
/// tournament by the circle method: in turn t, place j has to do with place t - j modulo k. Where
/// that is j itself, it uses the turn for a block of another group; so at most two members of a
/// group send out of it at once, however thin the way between groups. The last round has no such
/// block and goes by distances, so that all are busy in every turn. T. P. Kirkman, Cambridge and
/// Dublin Mathematical Journal 2, 1847.
Exchange CircleExchange(int me, int members, const CircleOptions& options);
/// Pairs at distances 1, 2, 4, ...: as Bruck's, without wrapping around; powers of two only.
/// Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
Exchange RecursiveDoublingExchange(int me, int members);

inline bool IsPowerOfTwo(int value) { return value > 0 && (value & (value - 1)) == 0; }

}  // namespace tidegate
