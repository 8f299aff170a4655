#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "collectives/schedule/wire_claim.h"
#include "collectives/topology/placement.h"
#include "collectives/topology/topology.h"
#include "common/status.h"

namespace tidegate {

// Proves that the schedules of a group do what their collective says, by executing all of them with
// symbols instead of bytes: every cell of every stage and output holds whose contribution, which
// block, which chunk. What that proves, and what not: docs/verifier.md.
//
// All functions are pure and take a time and memory proportional to the steps executed, about 50 ns
// each. A rejection is kInvalidArgument and names rank, step, chunk and slice.

/// One call to verify: who takes part, and how long the blocks are.
struct Problem {
  Collective collective = Collective::kAllGather;
  const Placement* placement = nullptr;  ///< Not null.
  int root = 0;                          ///< Rooted collectives only.
  std::int64_t chunk_bytes = 64;
  /// Bytes of the blocks; a single entry stands for all of them.
  ///   all_gather, reduce_scatter, gather, scatter   one a rank: its shard
  ///   all_reduce, broadcast, reduce                 one a part of the tensor
  ///   all_to_all                                    [from * ranks + to]
  ///   barrier                                       none
  std::vector<std::int64_t> sizes;
  /// Above 0: ranks r and r + shift (modulo ranks) do the same, so that the ranks below shift are
  /// executed for all. Must divide the number of ranks; for all_gather, reduce_scatter, all_reduce
  /// in one part a rank, and all_to_all. What is proved is as strong as without it, provided that
  /// the schedules are invariant under the shift, which is checked for `compared` ranks (0: all;
  /// else the first and last orbits and some drawn by a fixed seed). Invariant means: the same
  /// moves in the same order once ranks and blocks are moved by the shift; operands are then sorted
  /// by the rank that they come from, and waits that follow each other directly are a set.
  int shift = 0;
  int compared = 32;
  /// The machine of the placement, or null. With it and without a shift, the rejection of a claim
  /// also names a link that carries other bytes than claimed.
  const Topology* topology = nullptr;
};

/// Bytes from the stage or memory of one rank to that of another.
struct RankBytes {
  int from = 0;
  int to = 0;
  std::int64_t bytes = 0;
  bool operator==(const RankBytes&) const = default;
};

/// What a verified group of schedules does with a problem. With a shift, transfers, steps and
/// iterations are those of the executed ranks; nodes are counted in full.
struct Report {
  std::vector<RankBytes> put;   ///< Into the stage of another rank, by (from, to).
  std::vector<RankBytes> read;  ///< Out of the stage of another rank of the node, by (from, to).
  std::vector<std::int64_t> leaves;  ///< Bytes put by ranks of each node into other nodes.
  std::vector<std::int64_t> enters;  ///< Bytes put into each node by ranks of other nodes.
  int sub_slots_used = 0;            ///< Of the slot of the rank that uses most.
  std::int64_t steps = 0;            ///< Executed, each chunk counted.
  std::int64_t iterations = 0;       ///< Of the longest program.
  int marks = 0;
  /// Up to 8 ranks: waits that order nothing which the other waits do not order already, so that
  /// they could be left out.
  struct StepOf {
    int rank = 0;
    int step = 0;
    bool operator==(const StepOf&) const = default;
  };
  std::vector<StepOf> implied_waits;
  /// Reductions: every result is one pass over ranks 0 .. ranks - 1.
  bool in_rank_order = false;
  /// Reductions: a hash of the tree in which the contributions to each block are combined. Plans
  /// with equal hashes give equal bits.
  std::uint64_t order = 0;
};

using ScheduleOf = std::function<Schedule(int rank)>;
/// What a rank says that it puts over the wire; null: the plan says nothing, and is held to
/// nothing.
using ClaimOf = std::function<std::vector<WireClaim>(int rank)>;

/// Executes `problem`. ok() means: no step touches what it must not; nothing is read that is not
/// what the step is there for; no two accesses to a stage race; all ranks come to their ends, for
/// these sizes and for blocks of any number of chunks; every output is written once, with what the
/// collective says; reductions take in every rank once, in ascending order of the ranks that the
/// operands come from, with factors and division applied once, and alike on all ranks and chunks;
/// between ranks of different nodes go just the bytes that they claim.
Result<Report> Verify(const Problem& problem, const ScheduleOf& schedule_of,
                      const ClaimOf& claim_of = nullptr);

/// The problems that exercise a plan of `parts` parts whose pipeline is `depth` chunks deep: even
/// blocks of 0 to 6 chunks, and of enough for every slot to be used twice with the pipeline full
/// (up to 16 deep); uneven ones of 0 to 6 chunks, where the collective and the plan (`even`) allow
/// them.
std::vector<Problem> ProblemsFor(Collective collective, const Placement& placement, int root,
                                 int parts, int depth, bool even = false);

/// Verify for all of ProblemsFor; the report is that of the first, even problem, with the waits
/// that are implied in all of them. `topology` as in a Problem.
Result<Report> VerifyThoroughly(Collective collective, const Placement& placement, int root,
                                const ScheduleOf& schedule_of, const ClaimOf& claim_of = nullptr,
                                const Topology* topology = nullptr);

/// The greatest group whose ranks are all executed by VerifyPlan.
inline constexpr int kMaxFullyVerifiedRanks = 64;

/// What a communicator asks before it runs a plan: VerifyThoroughly up to kMaxFullyVerifiedRanks
/// ranks. Above, for even blocks of 5 chunks alone: by symmetry, shifted by a node or all nodes of
/// a switch, or where the plan has none by executing all ranks; kUnsupported where those have too
/// many steps, about 4 million.
Status VerifyPlan(Collective collective, const Placement& placement, int root,
                  const ScheduleOf& schedule_of, const ClaimOf& claim_of = nullptr,
                  const Topology* topology = nullptr);

}  // namespace tidegate
