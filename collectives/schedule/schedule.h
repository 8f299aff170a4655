#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidegate {

/// What a group can be asked to do. Values travel in fingerprints: append only.
enum class Collective : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
};
inline constexpr int kCollectives = 9;
/// "all_gather", "reduce_scatter", ...: the names of c10d.
std::string_view NameOf(Collective collective);
/// The collective of that name, if any.
std::optional<Collective> CollectiveNamed(std::string_view name);
/// Whether one rank differs from the others: broadcast, reduce, gather and scatter.
bool IsRooted(Collective collective);
/// Whether contributions are combined: reduce_scatter, all_reduce and reduce.
bool Reduces(Collective collective);

/// Where bytes lie. Input and output are the caller's tensors, private to a rank and cut into
/// blocks of any sizes; stage is memory of `owner` that every rank of its node can read, and that
/// any rank of the group can put bytes into.
enum class Buffer : std::uint8_t { kInput, kOutput, kStage };

/// Chunk c of each of `count` blocks: block, block + stride, ... For input and output a block is an
/// index into the executing rank's own blocks, whose sizes the executor knows: a schedule holds no
/// byte counts. For stage it is a sub-slot of the owner's slot for chunk c.
struct Slice {
  Buffer buffer = Buffer::kInput;
  std::int32_t owner = -1;  ///< Rank; stage only.
  std::int32_t block = 0;
  std::int32_t count = 1;
  std::int32_t stride = 1;
  /// Of one sub-slot that is read from a peer's stage: the block of the owner's input that lies in
  /// it (Step::staging), and that is read in its place where the owner is resident; -1: no such.
  std::int32_t origin = -1;

  /// The i-th of its blocks.
  std::int32_t at(int i) const { return block + i * stride; }
  bool operator==(const Slice&) const = default;
};

inline Slice Input(int block) { return {Buffer::kInput, -1, block}; }
inline Slice Output(int block) { return {Buffer::kOutput, -1, block}; }
inline Slice Stage(int owner, int sub_slot) { return {Buffer::kStage, owner, sub_slot}; }
/// What a peer staged of block `origin` of its input.
inline Slice StagedInput(int owner, int sub_slot, int origin) {
  return {Buffer::kStage, owner, sub_slot, 1, 1, origin};
}

enum class StepKind : std::uint8_t {
  kCopy,    ///< dst <- src, both on this rank (input, output or own stage).
  kGet,     ///< dst <- stage of another rank of the same node.
  kPut,     ///< Stage of `peer` <- src, on any node.
  kReduce,  ///< dst <- reduction of the operands in their order; dst as for kCopy or for kPut.
  kSignal,  ///< Tells `peer` (or all) that this rank reached chunk c at `mark`.
  kWait,    ///< Until `peer` (or every other rank) reached chunk c + wait_offset at `mark`.
};

/// Points in a rank's program that its peers can wait for, each with a progress word of its own.
/// Algorithms number them as they like; written by hand, these three are common.
using Mark = std::int32_t;
inline constexpr Mark kReady = 0;     ///< Chunk c is staged.
inline constexpr Mark kConsumed = 1;  ///< Chunk c has been read from the peers' stage.
inline constexpr Mark kResult = 2;    ///< Chunk c of a reduced block is staged.

inline constexpr int kAllPeers = -1;
/// Chunks of an operation that may lie in the stage at once: a schedule stages chunk c when chunk
/// c - kChunksInFlight has been read. In the model that it is verified by, these share a slot.
inline constexpr int kChunksInFlight = 2;
/// Slots of stage memory a rank has: a multiple of the chunks in flight, so that chunks which share
/// one of these share one of the model's. A slot comes round late, when the core that wrote it has
/// passed its lines on to a cache from which others read them without asking that core.
inline constexpr int kStageSlots = 2 * kChunksInFlight;

/// As an extent: the longest of all the caller's blocks on this rank. Progress words only grow, so
/// a signal for a chunk that a peer does not wait for is harmless.
inline constexpr Slice kLongestBlock{Buffer::kInput, -1, -1};

/// One instruction, executed once for each chunk of its extent.
struct Step {
  StepKind kind = StepKind::kCopy;
  /// Reduce: the result is not the end of it, so AVG does not divide yet.
  bool partial = false;
  /// A copy of input into this rank's own stage, for peers whose slices name it as their origin, or
  /// a wait or a signal that is there for such copies alone. A resident rank, whose peers can read
  /// its inputs where they lie, does without: the signals then stand for all chunks from the start.
  bool staging = false;
  /// Wait: the chunk waited for, relative to this step's own. Chunks below 0 need no wait.
  std::int8_t wait_offset = 0;
  /// The step runs for chunk c only if chunk c + guard_offset exists in `extent`.
  std::int8_t guard_offset = 0;
  /// How far the step lags: this is how steps overlap in a pipeline. See Schedule.
  std::int32_t lag = 0;
  Mark mark = 0;
  std::int32_t peer = kAllPeers;
  Slice dst;
  Slice src;
  /// The caller's blocks whose chunks give the step's lengths, one for each block of dst, and say
  /// whether it runs at all. A block that is shorter than the chunk's start takes no part; both
  /// ends of a transfer agree, because both know the size of the block.
  Slice extent;
  /// Reduce: operands [first_operand, first_operand + operand_count) of the schedule.
  std::int32_t first_operand = 0;
  std::int32_t operand_count = 0;

  bool operator==(const Step&) const = default;
};

/// One term of a reduction.
struct Operand {
  Slice slice;
  /// The rank whose input this is, whose PREMUL_SUM factor applies; -1 for a partial result.
  std::int32_t contributor = -1;

  bool operator==(const Operand&) const = default;
};

/// The program of one rank for one collective: a loop whose body is `steps`. It is parametric in
/// the number of chunks, holds no I/O, no pointers and no topology, and does not grow with the
/// message.
///
/// Life of an execution over C chunks: iterations 0 .. (C - 1) * period + MaxLag(); in iteration i,
/// every step in order for which i - lag is a chunk's multiple of the period: chunk c runs a step
/// of lag l in iteration c * period + l. Slot reuse inside an execution is the schedule's duty
/// (waits for what its readers signal); before its first chunks the executor's.
struct Schedule {
  std::string name;  ///< Of the algorithm, for example "direct".
  Collective collective = Collective::kAllGather;
  int rank = 0;
  int ranks = 1;
  /// The rank that the data comes from or goes to; -1 where the collective has none (IsRooted).
  int root = -1;
  /// Sub-slots into which a stage slot is cut; the chunk is slot bytes / sub_slots.
  int sub_slots = 1;
  /// Equal, aligned parts into which the caller's one tensor is cut to make the blocks, for
  /// all_reduce, broadcast and reduce; the other collectives come with their blocks.
  int parts = 1;
  /// Iterations from the start of one chunk to that of the next.
  int period = 1;
  /// Only for calls whose blocks are equally long on all ranks: it takes the lengths of other
  /// ranks' blocks from its own. Of all_to_all, gather and scatter, where nothing else says them.
  bool even = false;
  std::vector<Step> steps;
  std::vector<Operand> operands;

  int MaxLag() const;
  /// One more than the greatest mark that is signalled or waited for.
  int Marks() const;
  bool operator==(const Schedule&) const = default;
};

/// Blocks of the caller that a schedule works on.
struct BlockCounts {
  int inputs = 0;
  int outputs = 0;

  bool operator==(const BlockCounts&) const = default;
};
/// Those that the caller of the schedule's collective comes with on its rank, cut into its parts.
BlockCounts BlocksOf(const Schedule& schedule);
/// Those of `rank`, another rank that runs the same algorithm.
BlockCounts BlocksOf(const Schedule& schedule, int rank);

/// A line for the schedule and one for each step, stable across builds: for logs, golden files and
/// diffs. docs/architecture.md explains the words. Of a schedule that FindFault has nothing against
/// nothing is lost: ParseScheduleText (schedule_text.h) gives an equal one.
std::string ToText(const Schedule& schedule);

}  // namespace tidegate
