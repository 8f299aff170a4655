#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "backend/offload_node.h"
#include "backend/offload_parameter.h"
#include "backend/offload_step.h"
#include "offload/parallel_copy.h"

namespace tidegate {

/// One optimizer whose parameters the ranks of an OffloadNode step in parts, each its own.
///
/// Each rank shows the others, in its slice of the segment: a table of where the states, masters
/// and stepped parameters of its parts lie, and the sums of squares of its blocks. Peers copy from
/// there; nobody writes to another's slice. The class synchronises nothing: the ranks do that by
/// collectives of theirs, around these calls. One step is
///
///   Card() of each rank to all; nobody goes on before all are there, and have agreed to step
///   SetCards, Register, TotalSums (of PutSums before the cards), OffloadStep::Run, which also
///   leaves what it has stepped where the peers find it, PutSums
///   a barrier
///   Fetch, TotalSums (of PutSums after the step)
///
/// so that outside of a step, up to its own next card, a rank may read the states of all (Gather).
/// Used by one thread at a time; what copies blocks without the GIL. Throws as ThrowOffloadStatus.
class OffloadShards {
 public:
  explicit OffloadShards(std::shared_ptr<OffloadNode> node);
  /// Tells the peers that its states are gone, where they would still look for them.
  ~OffloadShards();
  OffloadShards(const OffloadShards&) = delete;
  OffloadShards& operator=(const OffloadShards&) = delete;

  /// Takes more parameters in, as the rows that follow: of each, the elements at which the parts
  /// of the ranks begin, and the end. MemoryError leaves it as it was.
  void Plan(const std::vector<std::vector<std::int64_t>>& cuts);
  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  /// A record of this rank's part of the parameter of `row`.
  std::shared_ptr<OffloadParameter> MakeRecord(std::int64_t row, const at::Tensor& parameter,
                                               offload::Master master, offload::States states,
                                               int state_count, bool counts_steps);

  /// What peers must know to read: four numbers.
  std::vector<std::int64_t> Card() const;
  /// Those of all ranks.
  void SetCards(std::vector<std::vector<std::int64_t>> cards);
  /// Enters records in the table, which peers may read after the next barrier.
  void Register(const std::vector<std::shared_ptr<OffloadParameter>>& records);
  void RegisterStep(const OffloadStep& step);

  /// Shows the peers the sums that `step` had last. There are two places, `turn` 0 and 1: a rank
  /// may be about to read the sums of one step while another has those of the next.
  void PutSums(const OffloadStep& step, int turn);
  /// The sum of squares of each gradient of `step`, in float64, the same bits as of one rank.
  at::Tensor TotalSums(const OffloadStep& step, int turn) const;

  /// Copies what the peers have stepped into the parameters.
  void Fetch(const OffloadStep& step);

  /// Those of the parameter when what the table says of `row` was made, by which its elements are
  /// shared out; empty where it says nothing yet.
  std::vector<std::int64_t> StridesOf(std::int64_t row) const;
  /// Of the parameters of a step, a number that tells the orders of their elements in memory apart.
  std::uint64_t OrdersOf(const OffloadStep& step) const;
  /// Copies the states and the master of all parts to `whole`, a record without a part of a tensor
  /// of these strides.
  /// RuntimeError if a peer has none, or has dropped its optimizer.
  void Gather(std::int64_t row, OffloadParameter& whole) const;

  /// For the end of the process: what lives now is not destroyed, so that peers can read it as long
  /// as they live.
  static void KeepAll();
  /// For KeepAll: all are made here.
  static std::shared_ptr<OffloadShards> Make(std::shared_ptr<OffloadNode> node);

 private:
  struct Row {
    std::vector<std::int64_t> cuts;
    std::shared_ptr<OffloadParameter> record;  ///< What the table says; null: nothing yet.
  };
  struct Entry;  ///< Of the table.

  std::int64_t CountOf(const Row& row, int rank) const;
  const Row& RowOf(const OffloadParameter& record) const;
  void Enter(std::int64_t row, const std::shared_ptr<OffloadParameter>& record);
  void EnterIfNew(const std::shared_ptr<OffloadParameter>& record);
  void CheckAlive(int rank) const;
  const std::byte* PartAt(int rank, std::uint64_t offset, std::size_t bytes) const;
  const Entry& EntryOf(int rank, std::int64_t row) const;
  Entry* OwnEntries() const;

  const std::shared_ptr<OffloadNode> node_;
  const std::uint64_t nonce_;
  std::vector<Row> rows_;
  std::vector<std::int64_t> blocks_;  ///< By rank, of all rows.
  at::Tensor table_;
  at::Tensor sums_;
  std::vector<at::Tensor> retired_;  ///< Tables and sums that peers may still look at.
  std::vector<std::vector<std::int64_t>> cards_;
};

}  // namespace tidegate
