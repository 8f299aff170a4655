#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "collectives/topology/placement.h"
#include "collectives/verifier/blocks.h"
#include "collectives/verifier/clocks.h"
#include "collectives/verifier/happened_before.h"
#include "collectives/verifier/orbit.h"
#include "collectives/verifier/values.h"

namespace tidegate::verifier {

/// All ranks of a group, executing symbolically: one interleaving of their steps. Waits are for
/// words that only grow, so that all interleavings get equally far, and where no two accesses race,
/// as the clocks show, all read the same: one stands for all of them.
///
/// It also stands for every choice of ranks that are resident. Those run the same steps but for the
/// staging ones, so they wait for less, and what they staged is read where it comes from. So a slot
/// that is read is what its slice says, and what orders accesses are signals and waits that are no
/// staging; those of staging steps count for the slots alone that their rank stages.
///
/// REQUIRES: schedules that CheckStructure accepts, of the representatives.
class Machine {
 public:
  Machine(const Blocks& blocks, const Placement& placement, Orbit orbit,
          std::span<const Schedule> schedules);

  Status Run();

  /// After Run.
  void Fill(Report* report) const;
  /// By representative and operand of its schedule: the rank that the operand came from, or -1.
  const std::vector<std::vector<int>>& sources() const { return sources_; }

 private:
  using Time = HappenedBefore::Time;

  /// One execution of a step. Without its iteration: there are tens of millions of these.
  struct Turn {
    int step;
    int chunk;
  };
  /// A rise of a progress word.
  struct Rise {
    int chunk;
    int peer;           ///< Told to, kAllPeers or in the frame of the representative.
    std::size_t saved;  ///< By clocks_.
    Time when;
    bool staging;
  };
  struct Access {
    int rank;  ///< In the frame of the owner's representative.
    Time when;
  };
  struct StageCell {
    Value value;
    Access write{-1, 0};
    int step = -1;  ///< Of the program of the writer.
    bool staging = false;
    std::vector<Access> reads;
  };
  struct OutputCell {
    Value value;
    int step = -1;
    /// By peers, of the input that may be the same memory, in place of what was staged of it.
    std::vector<Access> reads;
  };

  /// What a wait acquires.
  struct Acquired {
    int step;
    int peer;
    std::size_t saved;
  };

  static std::size_t At(std::int64_t index) { return static_cast<std::size_t>(index); }

  void Plan(int rank);
  std::int64_t IterationOf(int rank, const Turn& turn) const {
    const Schedule& schedule = schedules_[At(rank)];
    return std::int64_t{turn.chunk} * schedule.period + schedule.steps[At(turn.step)].lag;
  }
  std::int64_t LongestIn(int rank, const Slice& extent) const;
  bool Take(const Turn& turn);
  bool TakeWait(const Turn& turn, const Step& step);
  void Acquire(const Turn& turn, const Step& step, int peer, const Rise& rise);
  void EndWaits();
  const Rise* FindRise(int peer, const Step& step, std::int64_t chunk) const;
  bool TakeSignal(const Turn& turn, const Step& step);
  bool TakeMove(const Turn& turn, const Step& step);
  bool TakeReduce(const Turn& turn, const Step& step);

  std::int64_t LengthOf(const Step& step, int i, std::int64_t chunk) const;
  bool Read(const Turn& turn, const Slice& slice, int i, std::int64_t bytes, Value* value);
  bool Write(const Turn& turn, const Slice& slice, int i, std::int64_t bytes, const Value& value);
  bool WriteOutput(const Turn& turn, const Slice& slice, int i, const Value& value);
  bool IsOver(const Access& access, int owner, const std::vector<Access>& others,
              bool staging = false) const;
  bool TakeOrigin(const Turn& turn, const Slice& slice, int i, const StageCell& cell,
                  const Value& value);
  std::string NameOfAccess(const Access& access, int owner) const;
  StageCell& CellOf(const Slice& slice, int i, std::int64_t chunk);
  OutputCell& OutputOf(int rank, int block, std::int64_t chunk);
  std::string ProblemOfOutput(int rank, int block, const Value& value) const;
  bool Fail(const Turn& turn, const std::string& what);
  bool FailRace(const Turn& turn, const std::string& what);

  Status Stuck() const;
  int MissingPeerOf(int rank) const;
  Status CheckEnd();

  const Blocks& blocks_;
  const Placement& placement_;
  const Orbit orbit_;
  const std::span<const Schedule> schedules_;
  Values values_;
  HappenedBefore before_;
  std::optional<Clocks> clocks_;  ///< Of few ranks, all of which are executed.

  // By representative:
  std::vector<std::vector<Turn>> turns_;
  std::vector<std::size_t> next_;
  std::vector<std::vector<std::vector<Rise>>> marks_;
  std::vector<std::vector<OutputCell>> outputs_;
  std::vector<std::vector<std::size_t>> first_cell_;  ///< Of each output block.
  std::vector<std::vector<int>> sources_;
  std::vector<std::map<int, std::int64_t>> put_;   ///< Bytes by rank that they go to.
  std::vector<std::map<int, std::int64_t>> read_;  ///< Bytes by rank that they come from.

  // By representative: times of other ranks that it knows of only while this rank (staged_) or the
  // other one (told_) is not resident, because a staging step told of them. Enough for what that
  // rank stages, which is not there otherwise; nothing more may rest on them.
  std::vector<std::unordered_map<int, Time>> staged_;
  std::vector<std::unordered_map<int, Time>> told_;

  /// Since the last step that was no wait; only with clocks_.
  std::vector<std::vector<Acquired>> acquired_;
  std::vector<std::vector<Time>> known_;   ///< What was known before the first of these.
  std::vector<std::vector<bool>> needed_;  ///< By step: waits that ordered something.

  int sub_slots_ = 0;  ///< One more than the greatest that is named.
  std::vector<StageCell> stages_;
  int current_ = 0;  ///< The representative whose turn it is.
  Time now_ = 0;
  Status failure_;
  std::vector<Value> terms_;
};

}  // namespace tidegate::verifier
