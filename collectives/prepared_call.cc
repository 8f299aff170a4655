#include "collectives/prepared_call.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <new>
#include <string>

#include "collectives/streaming.h"
#include "common/hash.h"

namespace tidegate {
namespace {

/// Parts of a tensor start at multiples of this, so that kernels see aligned data where it was.
constexpr std::size_t kPartAlignment = 64;

/// Ranks differ legally in what they send.
constexpr std::size_t kTypicalAllToAll = std::size_t{1} << 20;

std::size_t LongestBytes(std::span<const Block> blocks) {
  std::size_t bytes = 0;
  for (const Block& block : blocks) bytes = std::max(bytes, block.bytes);
  return bytes;
}

/// Tells ranks that cut a tensor differently.
std::uint64_t LayoutHash(std::span<const Block> blocks) {
  std::uint64_t hash = kHashSeed;
  for (const Block& block : blocks) hash = MixHash(hash, block.bytes);
  return hash;
}

Status Invalid(const std::string& message) { return Status(StatusCode::kInvalidArgument, message); }

// What is wrong is put into words apart, so that what is right is checked in place.

Status WrongCount(const char* what, std::size_t count, int expected) {
  return Invalid("needs " + std::to_string(expected) + " " + what + " tensors, got " +
                 std::to_string(count));
}

Status WrongLength(const char* what, std::size_t bytes, std::size_t expected) {
  return Invalid(std::string(what) + " has " + std::to_string(bytes) + " bytes, expected " +
                 std::to_string(expected));
}

Status CheckCount(const char* what, std::span<const Block> blocks, int expected) {
  const bool right = blocks.size() == static_cast<std::size_t>(expected);
  return right ? Status() : WrongCount(what, blocks.size(), expected);
}

Status CheckEqual(const char* what, std::size_t bytes, std::size_t expected) {
  return bytes == expected ? Status() : WrongLength(what, bytes, expected);
}

Status CheckAllEqual(const char* what, std::span<const Block> blocks) {
  for (const Block& block : blocks)
    TIDEGATE_RETURN_IF_ERROR(CheckEqual(what, block.bytes, blocks.front().bytes));
  return Status();
}

/// Blocks wanted on this rank: {inputs, outputs}.
struct Shape {
  int inputs;
  int outputs;
};

Shape ShapeOf(const CollectiveRequest& request, int rank, int ranks) {
  const bool root = rank == request.root;
  switch (request.collective) {
    case Collective::kAllGather:
      return {1, ranks};
    case Collective::kReduceScatter:
      return {ranks, 1};
    case Collective::kAllReduce:
      return {1, 1};
    case Collective::kBroadcast:
      return {root ? 1 : 0, 1};
    case Collective::kReduce:
      return {1, root ? 1 : 0};
    case Collective::kGather:
      return {1, root ? ranks : 0};
    case Collective::kScatter:
      return {root ? ranks : 0, 1};
    case Collective::kAllToAll:
      return {ranks, ranks};
    case Collective::kBarrier:
      return {0, 0};
  }
  return {0, 0};
}

/// Bytes of all parts of a tensor but the last ones.
std::size_t PartBytes(std::size_t bytes, std::size_t parts) {
  const std::size_t even = (bytes + parts - 1) / parts;
  return (even + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

/// Puts the parts that a schedule cuts the blocks into, if it does, into `wanted`, which is empty.
void CutIntoParts(const Blocks& blocks, int parts, Blocks* wanted) {
  if (parts == 1 || blocks.size() != 1) return;
  const auto count = static_cast<std::size_t>(parts);
  const Block& tensor = blocks.front();
  const std::size_t part = PartBytes(tensor.bytes, count);
  wanted->reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = std::min(i * part, tensor.bytes);
    const std::size_t end = std::min(begin + part, tensor.bytes);
    wanted->push_back({tensor.data + begin, end - begin});
  }
}

/// Of the longest of them.
std::size_t LongestPart(const Blocks& blocks, int parts) {
  const std::size_t longest = LongestBytes(blocks);
  if (parts == 1 || blocks.size() != 1) return longest;
  return std::min(longest, PartBytes(longest, static_cast<std::size_t>(parts)));
}

bool AreAsLong(const Blocks& a, const Blocks& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Block& x, const Block& y) { return x.bytes == y.bytes; });
}

}  // namespace

std::size_t MessageBytes(const CollectiveRequest& request) {
  switch (request.collective) {
    case Collective::kReduceScatter:
    case Collective::kAllReduce:
      return TotalBytes(request.inputs);
    case Collective::kAllGather:
      return TotalBytes(request.outputs);
    case Collective::kAllToAll:
      return request.even ? TotalBytes(request.inputs) : kTypicalAllToAll;
    default:
      return std::max(LongestBytes(request.inputs), LongestBytes(request.outputs));
  }
}

std::size_t OutputBytes(const Requests& requests) {
  std::size_t bytes = 0;
  for (const CollectiveRequest& request : requests) bytes += TotalBytes(request.outputs);
  return bytes;
}

bool MayCopyOnce(Collective collective, std::size_t bytes, std::size_t most) {
  // Reductions would read into a buffer first. In a broadcast some ranks would copy everything,
  // while those that could fill stages meanwhile wait for them.
  const bool copies_from_all =
      collective == Collective::kAllGather || collective == Collective::kAllToAll;
  return copies_from_all && bytes >= kLeastSingleCopyBytes && bytes <= most;
}

Status CheckRequest(const CollectiveRequest& request, int rank, int ranks) {
  if (IsRooted(request.collective) && (request.root < 0 || request.root >= ranks))
    return Invalid("root " + std::to_string(request.root) + " is outside [0, " +
                   std::to_string(ranks) + ")");
  const Shape shape = ShapeOf(request, rank, ranks);
  TIDEGATE_RETURN_IF_ERROR(CheckCount("input", request.inputs, shape.inputs));
  TIDEGATE_RETURN_IF_ERROR(CheckCount("output", request.outputs, shape.outputs));
  const auto own = static_cast<std::size_t>(rank);
  switch (request.collective) {
    case Collective::kAllGather:
      TIDEGATE_RETURN_IF_ERROR(CheckEqual("this rank's part of the output",
                                          request.outputs[own].bytes, request.inputs[0].bytes));
      break;
    case Collective::kReduceScatter:
      TIDEGATE_RETURN_IF_ERROR(
          CheckEqual("the output", request.outputs[0].bytes, request.inputs[own].bytes));
      break;
    case Collective::kAllReduce:
      TIDEGATE_RETURN_IF_ERROR(
          CheckEqual("the output", request.outputs[0].bytes, request.inputs[0].bytes));
      break;
    case Collective::kReduce:
      if (rank == request.root)
        TIDEGATE_RETURN_IF_ERROR(
            CheckEqual("the output", request.outputs[0].bytes, request.inputs[0].bytes));
      break;
    case Collective::kGather:
      if (rank != request.root) break;
      TIDEGATE_RETURN_IF_ERROR(CheckAllEqual("an output of gather", request.outputs));
      TIDEGATE_RETURN_IF_ERROR(
          CheckEqual("the input", request.inputs[0].bytes, request.outputs[0].bytes));
      break;
    case Collective::kScatter:
      if (rank != request.root) break;
      TIDEGATE_RETURN_IF_ERROR(CheckAllEqual("an input of scatter", request.inputs));
      TIDEGATE_RETURN_IF_ERROR(
          CheckEqual("the output", request.outputs[0].bytes, request.inputs[0].bytes));
      break;
    case Collective::kAllToAll:
      TIDEGATE_RETURN_IF_ERROR(CheckEqual("this rank's part of the output",
                                          request.outputs[own].bytes, request.inputs[own].bytes));
      if (!request.even) break;
      TIDEGATE_RETURN_IF_ERROR(CheckAllEqual("an input of an even all_to_all", request.inputs));
      TIDEGATE_RETURN_IF_ERROR(CheckAllEqual("an output of an even all_to_all", request.outputs));
      break;
    case Collective::kBroadcast:
    case Collective::kBarrier:
      break;
  }
  if (Reduces(request.collective))
    TIDEGATE_RETURN_IF_ERROR(FindReduceKernel(request.dtype, request.reduce_op).status());
  return Status();
}

bool HaveSameShape(const CollectiveRequest& a, const CollectiveRequest& b) {
  // Of factors all bits: 0 and -0 are equal and not the same.
  return a.collective == b.collective && a.dtype == b.dtype && a.reduce_op == b.reduce_op &&
         std::bit_cast<std::uint64_t>(a.factor) == std::bit_cast<std::uint64_t>(b.factor) &&
         a.root == b.root && a.copy_inputs == b.copy_inputs && a.even == b.even &&
         a.order == b.order && a.input_memory == b.input_memory && AreAsLong(a.inputs, b.inputs) &&
         AreAsLong(a.outputs, b.outputs);
}

CallTraits TraitsOf(const CollectiveRequest& request, const Schedule& schedule,
                    std::size_t stage_bytes, const DataPaths& paths) {
  CallTraits call;
  call.schedule = &schedule;
  call.element_bytes = SizeOf(request.dtype);
  call.output_bytes =
      TotalBytes(request.collective == Collective::kReduceScatter || request.outputs.empty()
                     ? request.inputs
                     : request.outputs);
  call.copy_inputs = request.copy_inputs;
  call.streaming = WritesPastCaches(request, schedule.ranks, false, paths.stream_bytes);
  call.streaming_in_place = WritesPastCaches(request, schedule.ranks, true, paths.stream_bytes);
  call.chunk_bytes = paths.chunk_bytes;
  call.input_memory = request.input_memory;
  call.single_copy = MayCopyOnce(request.collective, call.output_bytes, paths.single_copy_bytes);
  call.crowded_single_copy =
      MayCopyOnce(request.collective, call.output_bytes, paths.crowded_single_copy_bytes);

  Fingerprint& fingerprint = call.fingerprint;
  fingerprint.plan = static_cast<std::uint32_t>(HashText(schedule.name));
  fingerprint.collective = request.collective;
  fingerprint.dtype = request.dtype;
  fingerprint.root = IsRooted(request.collective) ? request.root : -1;
  if (Reduces(request.collective)) {
    fingerprint.reduce_op = request.reduce_op;
    fingerprint.factor = request.factor;
    call.kernel = FindReduceKernel(request.dtype, request.reduce_op).value();
    call.partial_kernel = request.reduce_op == ReduceOp::kAvg
                              ? FindReduceKernel(request.dtype, ReduceOp::kSum).value()
                              : call.kernel;
  }
  switch (request.collective) {
    case Collective::kAllGather:
      fingerprint.elements = TotalBytes(request.outputs) / call.element_bytes;
      fingerprint.layout = LayoutHash(request.outputs);
      break;
    case Collective::kReduceScatter:
      fingerprint.elements = TotalBytes(request.inputs) / call.element_bytes;
      fingerprint.layout = LayoutHash(request.inputs);
      break;
    case Collective::kAllToAll:
      // Ranks differ legally; each pair is compared instead.
      break;
    default:
      fingerprint.layout = request.order;
      fingerprint.elements = std::max(LongestBytes(request.inputs), LongestBytes(request.outputs)) /
                             call.element_bytes;
      break;
  }
  // Only where every rank knows all blocks do all ranks come to the same answer here.
  if (request.collective != Collective::kAllToAll) {
    const std::size_t longest = std::max(LongestPart(request.inputs, schedule.parts),
                                         LongestPart(request.outputs, schedule.parts));
    call.wide_slots = longest * static_cast<std::size_t>(schedule.sub_slots) >=
                      kChunksInFlight * (stage_bytes / kStageSlots);
  }
  return call;
}

void Prepare(const CollectiveRequest& request, const CallTraits& traits, std::uint64_t sequence,
             PreparedCall* call) {
  static_cast<CallTraits&>(*call) = traits;
  call->fingerprint.sequence = sequence;
  if (traits.streaming != traits.streaming_in_place && !request.copy_inputs && IsInPlace(request))
    call->streaming = traits.streaming_in_place;
  CutIntoParts(request.inputs, traits.schedule->parts, &call->inputs);
  CutIntoParts(request.outputs, traits.schedule->parts, &call->outputs);
  if (traits.copy_inputs && call->inputs.empty()) call->inputs = request.inputs;
  if (request.collective != Collective::kAllToAll) return;
  call->splits.reserve(request.inputs.size() + request.outputs.size());
  for (const Block& block : request.inputs) call->splits.push_back(block.bytes);
  for (const Block& block : request.outputs) call->splits.push_back(block.bytes);
}

PreparedCall Prepare(const CollectiveRequest& request, const Schedule& schedule,
                     std::uint64_t sequence, std::size_t stage_bytes, const DataPaths& paths) {
  PreparedCall call;
  Prepare(request, TraitsOf(request, schedule, stage_bytes, paths), sequence, &call);
  if (call.inputs.empty()) call.inputs = request.inputs;
  if (call.outputs.empty()) call.outputs = request.outputs;
  return call;
}

Invocation Bind(const PreparedCall& call) {
  return {.schedule = call.schedule,
          .inputs = call.inputs,
          .outputs = call.outputs,
          .fingerprint = call.fingerprint,
          .shape = call.shape,
          .kernel = call.kernel,
          .partial_kernel = call.partial_kernel,
          .element_bytes = call.element_bytes,
          .splits = call.splits,
          .chunk_bytes = call.chunk_bytes,
          .wide_slots = call.wide_slots,
          .streaming = call.streaming,
          .single_copy = call.single_copy,
          .crowded_single_copy = call.crowded_single_copy,
          .input_memory = call.input_memory};
}

Invocation Bind(const PreparedCall& call, const CollectiveRequest& request) {
  Invocation invocation = Bind(call);
  if (call.inputs.empty()) invocation.inputs = request.inputs;
  if (call.outputs.empty()) invocation.outputs = request.outputs;
  return invocation;
}

Status MakeInputsPrivate(PreparedCall& call) {
  const std::size_t bytes = TotalBytes(call.inputs);
  call.private_inputs.reset(new (std::nothrow) std::byte[bytes]);
  if (call.private_inputs == nullptr)
    return Status(StatusCode::kResourceExhausted,
                  "no memory for a copy of " + std::to_string(bytes) +
                      " bytes of inputs that overlap the outputs; pass separate tensors");
  call.input_memory = InputMemory::kMalloc;
  std::byte* copy = call.private_inputs.get();
  for (Block& block : call.inputs) {
    if (block.bytes > 0) std::memcpy(copy, block.data, block.bytes);
    block.data = copy;
    copy += block.bytes;
  }
  return Status();
}

void BindTogether(std::span<PreparedCall> calls) {
  if (calls.size() == 1) return;
  std::uint64_t hash = kHashSeed;
  for (const PreparedCall& call : calls) {
    const Fingerprint& one = call.fingerprint;
    for (const std::uint64_t value :
         {one.elements, one.layout, static_cast<std::uint64_t>(one.dtype),
          static_cast<std::uint64_t>(one.reduce_op), static_cast<std::uint64_t>(one.root)})
      hash = MixHash(hash, value);
  }
  for (PreparedCall& call : calls) call.fingerprint.layout = MixHash(call.fingerprint.layout, hash);
}

bool Overlaps(const CollectiveRequest& a, const CollectiveRequest& b) {
  const auto overlap = [](std::span<const Block> xs, std::span<const Block> ys) {
    return std::any_of(xs.begin(), xs.end(), [&](const Block& x) {
      return std::any_of(ys.begin(), ys.end(), [&](const Block& y) {
        return std::less<>()(x.data, y.data + y.bytes) && std::less<>()(y.data, x.data + x.bytes) &&
               x.bytes > 0 && y.bytes > 0;
      });
    });
  };
  // Two readers do not disturb each other.
  return overlap(a.outputs, b.outputs) || overlap(a.outputs, b.inputs) ||
         overlap(a.inputs, b.outputs);
}

}  // namespace tidegate
