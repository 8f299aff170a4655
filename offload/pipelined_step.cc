#include "offload/pipelined_step.h"

#include <algorithm>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "common/check.h"
#include "offload/memory/byte_range.h"

namespace tidegate::offload {
namespace {

/// Parts of a chunk begin at cache lines of their own.
constexpr std::size_t kAlignment = 64;

}  // namespace

PipelinedStep::PipelinedStep(ThreadPool& pool, std::shared_ptr<Arena> arena, Lane& in, Lane& out,
                             const Options& options)
    : pool_(pool),
      arena_(std::move(arena)),
      in_(in),
      out_(out),
      tiles_a_chunk_(std::max((options.chunk_elements + TileSpace::kTile - 1) / TileSpace::kTile,
                              std::size_t{1})),
      slots_(std::max(options.chunks_ahead, std::size_t{1})) {
  TIDEGATE_CHECK(in.direction() == Direction::kDeviceToHost);
  TIDEGATE_CHECK(out.direction() == Direction::kHostToDevice);
}

PipelinedStep::~PipelinedStep() { static_cast<void>(Finish()); }

Status PipelinedStep::FetchGradients(std::span<const PipelinedTensor> tensors, float factor,
                                     std::span<double> squares, TimePoint deadline) {
  TIDEGATE_CHECK(squares.size() == tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t].host.operands.count != 0 && tensors[t].host.operands.gradient == nullptr)
      return {StatusCode::kInvalidArgument,
              "tensor " + std::to_string(t) + " has no host memory for its gradient"};
  deadline_ = deadline;
  factor_ = factor;
  TIDEGATE_RETURN_IF_ERROR(Prepare(tensors));
  const Status status = DriveChunks(Pass::kSums);
  if (!status.ok()) return Stop(status);
  space_.AddUp(squares);
  return {};
}

Status PipelinedStep::Begin(std::span<const PipelinedTensor> tensors, std::span<double> squares,
                            TimePoint deadline) {
  TIDEGATE_CHECK(squares.empty() || squares.size() == tensors.size());
  deadline_ = deadline;
  TIDEGATE_RETURN_IF_ERROR(Prepare(tensors));
  squares_ = squares;
  sent_.assign(tensors.size(), CopyEvent());
  done_.store(0, std::memory_order_relaxed);
  ended_.store(false, std::memory_order_relaxed);
  return {};
}

Status PipelinedStep::Start(std::span<const PipelinedTensor> tensors, std::span<double> squares,
                            TimePoint deadline) {
  TIDEGATE_RETURN_IF_ERROR(Begin(tensors, squares, deadline));
  try {
    thread_ = std::thread([this] { Drive(); });
  } catch (const std::system_error& error) {
    return {StatusCode::kResourceExhausted,
            std::string("no thread for a pipelined step: ") + error.what()};
  }
  return {};
}

Status PipelinedStep::Wait(std::size_t index, TimePoint deadline) {
  TIDEGATE_CHECK(index < sent_.size());
  while (done_.load(std::memory_order_acquire) <= index) {
    if (ended_.load(std::memory_order_acquire)) {
      if (!status_.ok()) return status_;
      continue;  // It has ended well, so it has counted all tensors as done.
    }
    if (SteadyClock().Now() >= deadline)
      return {StatusCode::kTimeout, "tensor " + std::to_string(index) +
                                        " of a pipelined step was not updated before the deadline"};
    const std::uint32_t ticket = progress_.Arm();
    if (done_.load(std::memory_order_acquire) <= index && !ended_.load(std::memory_order_acquire))
      progress_.Sleep(ticket, deadline);
    else
      progress_.Disarm();
  }
  return out_.Wait(sent_[index], deadline);
}

Status PipelinedStep::Finish() {
  if (!thread_.joinable()) return {};
  thread_.join();
  return status_;
}

Status PipelinedStep::Run(std::span<const PipelinedTensor> tensors, std::span<double> squares,
                          TimePoint deadline) {
  TIDEGATE_RETURN_IF_ERROR(Begin(tensors, squares, deadline));
  Drive();
  return status_;
}

void PipelinedStep::Drive() {
  try {
    status_ = Update();
  } catch (const std::bad_alloc&) {
    status_ = Stop({StatusCode::kResourceExhausted, "no memory for a pipelined step"});
  }
  ended_.store(true, std::memory_order_release);
  progress_.Ring();
}

std::size_t PipelinedStep::Chunks() const {
  return (space_.tiles() + tiles_a_chunk_ - 1) / tiles_a_chunk_;
}

std::span<const TileSpace::Piece> PipelinedStep::PiecesOf(std::size_t chunk) const {
  const std::size_t begin = chunk * tiles_a_chunk_;
  return space_.Pieces(begin, std::min(begin + tiles_a_chunk_, space_.tiles()));
}

Status PipelinedStep::Prepare(std::span<const PipelinedTensor> tensors) {
  if (thread_.joinable())
    return {StatusCode::kInvalidArgument, "a pipelined step began before the last one's Finish"};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const PipelinedTensor& tensor = tensors[t];
    if (tensor.host.operands.count != 0 && tensor.device_gradient == nullptr &&
        tensor.host.operands.gradient == nullptr)
      return {StatusCode::kInvalidArgument, "tensor " + std::to_string(t) + " has no gradient"};
  }
  tensors_ = tensors;
  space_.CutFor(tensors.size(), [&](std::size_t t) { return tensors[t].host.operands.count; });
  std::size_t most = 0;
  for (std::size_t chunk = 0; chunk < Chunks(); ++chunk) {
    std::size_t bytes = 0;
    for (const TileSpace::Piece& piece : PiecesOf(chunk))
      if (tensors[piece.tensor].host.operands.gradient == nullptr)
        bytes += RoundUp(piece.count * SizeOf(tensors[piece.tensor].gradient), kAlignment);
    most = std::max(most, bytes);
  }
  if (most <= slot_bytes_) return {};
  for (Slot& slot : slots_) {
    slot.memory.reset();
    auto memory = arena_->AllocateShared(most);
    if (!memory.ok()) {
      slot_bytes_ = 0;
      return memory.status();
    }
    slot.memory = std::move(memory).value();
  }
  slot_bytes_ = most;
  return {};
}

Status PipelinedStep::Update() {
  const Status status = DriveChunks(Pass::kUpdate);
  if (!status.ok()) return Stop(status);
  if (!squares_.empty()) space_.AddUp(squares_);
  Publish(tensors_.size());
  // Copies that are under way read memory that the caller has back after Finish.
  for (const CopyEvent sent : sent_)
    if (const Status copied = out_.Wait(sent, deadline_); !copied.ok()) return Stop(copied);
  return {};
}

Status PipelinedStep::Stop(const Status& status) {
  in_.Abort(status);
  out_.Abort(status);
  // However long the copies that are being made take: they use the caller's memory.
  static_cast<void>(in_.AwaitIdle(kNoDeadline));
  static_cast<void>(out_.AwaitIdle(kNoDeadline));
  return status;
}

Status PipelinedStep::DriveChunks(Pass pass) {
  const std::size_t chunks = Chunks();
  std::size_t asked = 0;  // Chunks whose gradients are on their way.
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    for (; asked < std::min(chunk + slots_.size(), chunks); ++asked)
      TIDEGATE_RETURN_IF_ERROR(BringIn(asked));
    Slot& slot = slots_[chunk % slots_.size()];
    TIDEGATE_RETURN_IF_ERROR(in_.Wait(slot.arrived, deadline_));
    TIDEGATE_RETURN_IF_ERROR(Compute(chunk, pass));
    if (pass == Pass::kSums) continue;
    TIDEGATE_RETURN_IF_ERROR(SendOut(slot));
    if (chunk + 1 < chunks) Publish(PiecesOf(chunk + 1).front().tensor);
  }
  return {};
}

Status PipelinedStep::BringIn(std::size_t chunk) {
  Slot& slot = slots_[chunk % slots_.size()];
  slot.parts.clear();
  slot.arrived = CopyEvent();
  for (const TileSpace::Piece& piece : PiecesOf(chunk)) {
    if (!slot.parts.empty() && slot.parts.back().tensor == piece.tensor)
      slot.parts.back().count += piece.count;
    else
      slot.parts.push_back({piece.tensor, piece.first, piece.count, nullptr});
  }
  std::byte* room = slot.memory.get();
  for (Part& part : slot.parts) {
    const PipelinedTensor& tensor = tensors_[part.tensor];
    const std::size_t offset = part.first * SizeOf(tensor.gradient);
    const std::size_t bytes = part.count * SizeOf(tensor.gradient);
    if (tensor.host.operands.gradient != nullptr) {
      // Room of the caller's that is this step's to fill.
      part.staged =
          static_cast<std::byte*>(const_cast<void*>(tensor.host.operands.gradient)) + offset;
    } else {
      part.staged = room;
      room += RoundUp(bytes, kAlignment);
    }
    if (tensor.device_gradient == nullptr) continue;
    const auto* source = static_cast<const std::byte*>(tensor.device_gradient) + offset;
    auto copy = in_.Copy({source, part.staged, bytes}, deadline_);
    if (!copy.ok()) return copy.status();
    slot.arrived = copy.value();
  }
  return {};
}

Status PipelinedStep::Compute(std::size_t chunk, Pass pass) {
  const Slot& slot = slots_[chunk % slots_.size()];
  const std::size_t begin = chunk * tiles_a_chunk_;
  const std::size_t tiles = std::min(tiles_a_chunk_, space_.tiles() - begin);
  const bool wants_sums = !squares_.empty();
  return pool_.Run(tiles, [&](std::size_t tile, int) {
    for (const TileSpace::Piece& piece : space_.Pieces(begin + tile)) {
      const auto part =
          std::lower_bound(slot.parts.begin(), slot.parts.end(), piece.tensor,
                           [](const Part& one, std::size_t wanted) { return one.tensor < wanted; });
      const PipelinedTensor& tensor = tensors_[piece.tensor];
      const void* const gradient = ElementZero(part->staged, part->first, SizeOf(tensor.gradient));
      if (pass == Pass::kSums) {
        tensor.host.sums(gradient, piece.first, piece.count, factor_, space_.BlocksOf(piece));
        continue;
      }
      TensorOperands operands = tensor.host.operands;
      operands.gradient = gradient;
      operands.stream_parameter = tensor.device_parameter == nullptr;  // Else it is read at once.
      tensor.host.update(operands, piece.first, piece.count, tensor.host.coefficients,
                         wants_sums ? space_.BlocksOf(piece) : nullptr);
    }
    return Status();
  });
}

Status PipelinedStep::SendOut(const Slot& slot) {
  for (const Part& part : slot.parts) {
    const PipelinedTensor& tensor = tensors_[part.tensor];
    if (tensor.device_parameter == nullptr) continue;
    const std::size_t offset = part.first * SizeOf(tensor.parameter);
    const auto* source = static_cast<const std::byte*>(tensor.host.operands.parameter) + offset;
    auto* destination = static_cast<std::byte*>(tensor.device_parameter) + offset;
    auto copy = out_.Copy({source, destination, part.count * SizeOf(tensor.parameter)}, deadline_);
    if (!copy.ok()) return copy.status();
    sent_[part.tensor] = copy.value();
  }
  return {};
}

void PipelinedStep::Publish(std::size_t tensors_done) {
  done_.store(tensors_done, std::memory_order_release);
  progress_.Ring();
}

}  // namespace tidegate::offload
