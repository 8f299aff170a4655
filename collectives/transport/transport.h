#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "collectives/kernels/dtype.h"
#include "collectives/schedule/schedule.h"
#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// Independent streams of collectives in one group: reductions use one, everything else the other.
inline constexpr int kLanes = 2;
/// Progress words of one rank in one lane of shared memory, twice what any algorithm takes among
/// the ranks that a group can have there: schedules that need more cannot be run. Between nodes
/// there is no such number (docs/adr/0011-words-between-nodes.md).
inline constexpr int kMaxMarks = 510;
/// The progress word behind those of schedules: that a rank has read all that it reads of its
/// peers' inputs where they lie.
inline constexpr Mark kDoneMark = kMaxMarks;

/// Where peers read the inputs of a rank. So wide that Fingerprint, which travels as words, has no
/// padding.
enum class InputsIn : std::uint16_t {
  kStage = 0,    ///< In its stage, chunk by chunk.
  kRegion = 1,   ///< Where they lie, in its region.
  kProcess = 2,  ///< Where they lie, in the memory of its process (Transport::ReadMemory).
};

/// What a rank says about a call when it arrives at it; compared by every rank with its own before
/// a byte of any output is written. Plain data: lies in memory shared between processes, in one
/// cache line with the number of the arrival.
struct Fingerprint {
  std::uint64_t sequence = 0;  ///< Group-wide number of the call, from 1.
  std::uint64_t elements =
      0;  ///< Of the whole collective, as c10d counts them; 0 where ranks may differ.
  /// Hash of what else all ranks must agree on: block sizes, or a tensor's order in memory.
  std::uint64_t layout = 0;
  double factor = 1.0;  ///< PREMUL_SUM factor of this rank; ranks may differ.
  /// Where this rank's inputs begin, one behind the other: an offset into its region or an address
  /// in its process; of kStage nothing.
  std::uint64_t inputs_at = 0;
  std::uint32_t plan = 0;  ///< Hash of the name of the algorithm that the rank is about to run.
  std::int32_t root = -1;
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp reduce_op = ReduceOp::kNone;
  std::uint8_t refused = 0;  ///< 1: this rank's own call was wrong; it will not take part.
  InputsIn inputs_in = InputsIn::kStage;  ///< Ranks may differ, as in inputs_at.
  /// A bit for each of the first marks: that it was signalled for chunk 0 before the arrival, so
  /// that who waits for it need not fetch the line of its word. Ranks may differ.
  std::uint16_t ahead = 0;
};
inline constexpr int kAheadMarks = 16;

/// True when two ranks made the same call.
bool Matches(const Fingerprint& a, const Fingerprint& b);
/// "all_reduce(SUM, float32, 1024 elements) seq 7".
std::string Describe(const Fingerprint& fingerprint);

/// What a blocked rank waits for: that everybody arrives at operation `index` of a lane and that
/// then the progress words of `mark` reach `word`. All zero: that it is not known to wait.
struct PendingWait {
  std::uint64_t index = 0;
  std::uint64_t word = 0;
  Mark mark = 0;
  std::int32_t peer = kAllPeers;  ///< Whose word, or kAllPeers.
};

/// Why a group failed, as written by the rank that noticed first and read by all.
struct GroupFailure {
  StatusCode code = StatusCode::kOk;
  int reporter = -1;  ///< Rank that noticed.
  int culprit = -1;   ///< Rank that caused it; -1 when no single rank did.
  std::string text;
};

/// One rank's view of what a group shares: stage memory that every rank reads, progress words that
/// only grow, arrivals, and the first failure.
///
/// To implement one: (1) give each rank stage memory and progress words that its peers can read;
/// (2) make every write before Arrive or Signal visible to a peer that has seen it
/// (release/acquire); (3) wake peers that sleep when asked to. Nothing here blocks. One thread at a
/// time for each lane; lanes are independent of each other.
///
/// Words of one lane and mark must be passed to Signal in non-decreasing order.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  /// Bytes of stage that a rank has in a lane.
  virtual std::size_t stage_bytes() const = 0;
  /// Stage of `owner` in `lane`, always in one place; of a peer, this rank writes only the
  /// sub-slots that its schedule puts bytes into.
  virtual std::byte* StageOf(int lane, int owner) = 0;
  /// Makes [offset, offset + bytes) of this rank's own stage usable; kResourceExhausted where the
  /// machine cannot provide it. Must precede the first use of a range; idempotent.
  virtual Status CommitStage(int lane, std::size_t offset, std::size_t bytes) = 0;

  /// Bytes of memory that each rank has for tensors of its own which all ranks can read; 0: none.
  virtual std::size_t region_bytes() const = 0;
  /// That of `owner`. What of it is no tensor of the owner need not have pages.
  virtual std::byte* RegionOf(int owner) = 0;

  /// How many ranks share a processor of those that they may use, all together, rounded up; 1: each
  /// can have its own. More than that as long as some rank is still to come; equal on all ranks
  /// from then on. Cheap.
  virtual int ranks_per_cpu() = 0;
  bool crowded() { return ranks_per_cpu() > 1; }

  /// Whether every peer has found that it can read the memory of this rank's process. Never
  /// becomes false again.
  virtual bool PeersReadMemory() = 0;
  /// Whether this rank has found that it can read that of `peer`.
  virtual bool ReadsMemoryOf(int peer) = 0;
  /// Whether peers could read [data, data + bytes), which is this process's. May cost a system
  /// call.
  virtual bool IsReadable(const std::byte* data, std::size_t bytes) = 0;
  /// Copies `bytes` at `address` of `peer`'s process to `to`. kPeerLost: that process ends, and
  /// the group fails or is about to; kInvalidArgument: it has no such memory; kInternal: `to`
  /// cannot be written. REQUIRES: ReadsMemoryOf(peer).
  virtual Status ReadMemory(int peer, std::uint64_t address, std::byte* to, std::size_t bytes) = 0;

  /// Publishes that this rank came to operation `index` (from 1, counted by lane) with
  /// `fingerprint` and, for all_to_all (else empty), the bytes it will send to each rank followed
  /// by the bytes it expects from each. An arrival stays readable until the rank arrives at `index
  /// + 2`.
  virtual void Arrive(int lane, std::uint64_t index, const Fingerprint& fingerprint,
                      std::span<const std::uint64_t> splits) = 0;
  virtual bool HasArrived(int lane, int peer, std::uint64_t index) = 0;
  /// REQUIRES: HasArrived(lane, peer, index).
  virtual Fingerprint ArrivalOf(int lane, int peer, std::uint64_t index) = 0;
  /// Entry `position` of the splits that `rank` arrived with.
  virtual std::uint64_t SplitOf(int lane, int rank, std::uint64_t index, int position) = 0;
  /// The latest arrival of `peer` in `lane`, for diagnosis; false when there is none.
  virtual bool LatestArrival(int lane, int peer, Fingerprint* fingerprint) = 0;

  /// Raises this rank's progress word of `mark`, at most kDoneMark, to `word`. Like Arrive it wakes
  /// nobody: after one or several of them comes Wake.
  virtual void Signal(int lane, Mark mark, std::uint64_t word) = 0;
  virtual bool HasReached(int lane, int peer, Mark mark, std::uint64_t word) = 0;

  /// Wakes every rank that may sleep; a rank with nothing to do goes back to sleep.
  virtual void Wake() = 0;

  /// Publishes what this rank waits for, for the diagnosis of its peers: it stands until the next.
  virtual void PublishWait(int lane, const PendingWait& wait) = 0;
  /// What `peer` published last. It may wait for that no longer.
  virtual PendingWait WaitOf(int lane, int peer) = 0;

  /// "rank 2 (pid 4711, host a)" as far as known.
  virtual std::string DescribePeer(int peer) = 0;
  /// True when `peer` has left the group in an orderly way.
  virtual bool HasLeft(int peer) = 0;

  /// Records `failure` for all ranks unless one is recorded already, and wakes everybody.
  virtual void Fail(const GroupFailure& failure) = 0;
  /// Cheap enough for every poll.
  virtual bool failed() const = 0;
  /// Whether a failure is recorded or being recorded: any rank's call may have returned with it.
  virtual bool failing() const = 0;
  /// REQUIRES: failed().
  virtual GroupFailure failure() const = 0;
};

}  // namespace tidegate
