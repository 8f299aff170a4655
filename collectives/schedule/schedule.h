#pragma once

#include <cstdint>
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
/// "all_gather", "reduce_scatter", ...: the names of c10d.
std::string_view NameOf(Collective collective);

/// Where bytes lie. Input and output are the caller's tensors, private to a rank and cut into
/// blocks of any sizes; stage is memory of `owner` that every rank of the group can read.
enum class Buffer : std::uint8_t { kInput, kOutput, kStage };

/// Chunk c of one block. For input and output the block is an index into the executing rank's own
/// blocks, whose sizes the executor knows: a schedule holds no byte counts. For stage the block is
/// the sub-slot of the owner's slot for chunk c.
struct Slice {
  Buffer buffer = Buffer::kInput;
  std::int16_t owner = -1;  ///< Rank; stage only.
  std::int16_t block = 0;

  bool operator==(const Slice&) const = default;
};

inline Slice Input(int block) { return {Buffer::kInput, -1, static_cast<std::int16_t>(block)}; }
inline Slice Output(int block) { return {Buffer::kOutput, -1, static_cast<std::int16_t>(block)}; }
inline Slice Stage(int owner, int sub_slot) {
  return {Buffer::kStage, static_cast<std::int16_t>(owner), static_cast<std::int16_t>(sub_slot)};
}

enum class StepKind : std::uint8_t {
  kCopy,    ///< dst <- src, both on this rank (input, output or own stage).
  kGet,     ///< dst <- stage of another rank.
  kReduce,  ///< dst <- reduction of the operands in their order.
  kSignal,  ///< Tells `peer` (or all) that this rank reached chunk c on `channel`.
  kWait,    ///< Until `peer` (or every other rank) reached chunk c + wait_offset on `channel`.
};

/// Meanings of the progress words that a rank shows its peers.
enum class Channel : std::uint8_t {
  kReady,    ///< Chunk c is staged.
  kResult,   ///< Chunk c of a reduced block is staged.
  kConsumed  ///< Chunk c has been read from the peers' stage.
};
inline constexpr int kChannels = 3;
inline constexpr int kAllPeers = -1;
/// Slots of stage memory a rank has; chunk c lies in slot c modulo this.
inline constexpr int kStageSlots = 2;

/// As an extent: the longest of all the caller's blocks on this rank. Progress words only grow, so
/// a signal for a chunk that a peer does not wait for is harmless.
inline constexpr Slice kLongestBlock{Buffer::kInput, -1, -1};

/// One instruction, executed once for each chunk of its extent.
struct Step {
  StepKind kind = StepKind::kCopy;
  Channel channel = Channel::kReady;
  /// Runs for chunk (iteration - lag): this is how steps overlap in a pipeline.
  std::int8_t lag = 0;
  /// Wait: the chunk waited for, relative to this step's own. Chunks below 0 need no wait.
  std::int8_t wait_offset = 0;
  /// The step runs for chunk c only if chunk c + guard_offset exists in `extent`.
  std::int8_t guard_offset = 0;
  std::int16_t peer = kAllPeers;
  Slice dst;
  Slice src;
  /// The caller's block whose chunk gives the step's length and says whether it runs at all. A step
  /// whose block is shorter than the chunk's start does nothing; both ends of a transfer agree,
  /// because both know the size of the block.
  Slice extent;
  /// Reduce: operands [first_operand, first_operand + operand_count) of the schedule.
  std::int32_t first_operand = 0;
  std::int32_t operand_count = 0;
};

/// The program of one rank for one collective: a loop over chunks whose body is `steps`. It is
/// parametric in the number of chunks, holds no I/O, no pointers and no topology, and does not grow
/// with the message.
///
/// Life of an execution: iterations 0 .. chunks - 1 + max lag; in each, every step in order, for
/// chunk (iteration - lag) where that lies in [0, chunks). Slot reuse inside an execution is the
/// schedule's duty (waits on kConsumed); before its first chunks the executor's.
struct Schedule {
  std::string name;  ///< Of the algorithm, for example "direct".
  Collective collective = Collective::kAllGather;
  int rank = 0;
  int ranks = 1;
  /// Sub-slots into which a stage slot is cut; the chunk is slot bytes / sub_slots.
  int sub_slots = 1;
  /// Equal, aligned parts into which the caller's one tensor is cut to make the blocks, for
  /// all_reduce, broadcast and reduce; the other collectives come with their blocks.
  int parts = 1;
  std::vector<Step> steps;
  std::vector<Slice> operands;

  int MaxLag() const;
};

/// One line a step, stable across builds: for logs, golden files and diffs.
std::string ToText(const Schedule& schedule);

}  // namespace tidegate
