#pragma once

#include <string>
#include <vector>

#include "collectives/schedule/schedule.h"

namespace tidegate {

/// Blocks first, first + stride, ...
struct BlockRun {
  int first = 0;
  int count = 1;
  int stride = 1;

  bool operator==(const BlockRun&) const = default;
};
/// The same blocks in the same order, in as few runs as the order allows.
std::vector<BlockRun> RunsOf(const std::vector<int>& blocks);
int CountOf(const std::vector<BlockRun>& runs);

/// One message of a flow, as either of its ends sees it. The two descriptions differ in `peer`
/// only.
struct Hop {
  enum class Medium : std::uint8_t {
    kNode,  ///< The receiver reads the sender's stage; several hops may share what lies there.
    kWire,  ///< The sender puts the blocks into the receiver's stage.
  };

  int time = 0;    ///< Sent at this time,
  int flight = 1;  ///< and received so many times later; backwards: read at the next.
  int peer = 0;
  Medium medium = Medium::kNode;
  /// Names the hop in waits: a rank tells its peers when it has sent all hops of an id, and when it
  /// has read all it receives under it. Below Flow.ids.
  int id = 0;
  /// Sub-slot of the first block: of the sender's stage (kNode) or the receiver's (kWire).
  int slot = 0;
  /// The same where the flow runs backwards, and the receiver sends.
  int back_slot = 0;
  /// The id of the hop to the same peer that lay at back_slot before, where that is not this one's
  /// own: of this chunk, if it `is_of_chunk`, else of the one before it in the slot.
  struct Before {
    int id = -1;
    bool is_of_chunk = false;
    bool operator==(const Before&) const = default;
  };
  Before back_before = {};
  /// The receiver passes none of the blocks on: backwards it sends its plain input.
  bool leaf = false;
  std::vector<BlockRun> blocks = {};
};

/// How blocks get from their owners to whoever wants them, as one rank sees it: for every block a
/// tree of hops, rooted at its owner. This is all that an algorithm says; forwards it is an
/// all-gather or a broadcast, backwards a reduce-scatter or a reduction, one after the other an
/// all-reduce (lower.h).
///
/// Rules, which the verifier holds every lowered flow to: each wanted block is received once; what
/// is sent at time t was owned or received by then; at most one hop of one id and
/// time for each pair of ranks; slots of hops that a rank's stage serves at once are disjoint.
struct Flow {
  std::string name;
  int rank = 0;
  int ranks = 1;
  int root = -1;              ///< Of broadcast and reduce.
  int parts = 1;              ///< Of their tensor; the blocks are 0 .. parts - 1.
  std::vector<int> own = {};  ///< Blocks that this rank has from the start.
  // Equal on all ranks:
  int times = 0;  ///< Hops are sent at times 0 .. times - 1.
  int ids = 0;
  int slots = 1;       ///< Sub-slots of a rank's stage, forwards ...
  int back_slots = 1;  ///< ... and backwards.
  /// Iterations between chunks when run backwards: a partial sum stays in its slot until the last
  /// reduction that reads it, which must be over when the slot's turn comes again.
  int back_period = 1;
  /// The same forwards: what is sent stays in its slot for the time of its flights.
  int period = 1;

  std::vector<Hop> receives = {};
  std::vector<Hop> sends = {};
};

}  // namespace tidegate
