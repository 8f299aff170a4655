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
/// Pairs at distances 1, 2, 4, ...: as Bruck's, without wrapping around; powers of two only.
/// Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
Exchange RecursiveDoublingExchange(int me, int members);

inline bool IsPowerOfTwo(int value) { return value > 0 && (value & (value - 1)) == 0; }

}  // namespace tidegate
