#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/ipc/doorbell.h"
#include "common/status.h"
#include "offload/memory/arena.h"
#include "offload/threads/thread_pool.h"
#include "offload/tile_space.h"
#include "offload/transfer/lane.h"

namespace tidegate::offload {

/// A tensor whose gradient comes from a device and whose parameter goes to it.
struct PipelinedTensor {
  /// operands.parameter: the whole parameter in host memory, which is copied to the device once it
  /// is updated. operands.gradient: room for the whole gradient in host memory; null: its chunks
  /// only pass through, in memory of the pipeline.
  StepTensor host;
  ElementType gradient = ElementType::kFloat32;
  ElementType parameter = ElementType::kFloat32;
  /// Null: the gradient is in host memory already, as after FetchGradients.
  const void* device_gradient = nullptr;
  void* device_parameter = nullptr;  ///< Null: it stays on the host.
};

/// Steps over two lanes, chunk by chunk: while a chunk is updated, the gradients of those after it
/// come in and the parameters of those before it go out. The results have the same bits as those of
/// StepRunner on the same numbers, whatever the chunk and however steps overlap with anything.
///
/// Without clipping a step is Run, or Start, something else meanwhile, and Finish. Clipping to a
/// global norm needs all gradients before the first update, and is exact like this (`tensors` in
/// the order in which the next forward pass uses them):
///   1. FetchGradients, overlapped by its caller with what is left of the backward pass: gradients
///      come into host memory and are squared and summed as they arrive;
///   2. the norm from the sums gives the factor, from which CoefficientsOf each tensor;
///   3. Start: updates begin, with device_gradient null;
///   4. the forward pass, which calls Wait for a tensor before it uses it on the device. No stale
///      parameter is ever read and nothing is rolled back;
///   5. Finish, before anything else looks at parameters or states.
///
/// Start, Finish, FetchGradients and Run are called by one thread at a time, Wait by any. A failure
/// (a lane's, a worker lost, the deadline) ends the step where it is: some tensors are then updated
/// and others not, as when a device is lost.
class PipelinedStep {
 public:
  struct Options {
    /// Elements of a chunk, rounded up to whole tiles. 4 MiB of float32: a copy engine is at its
    /// full rate with that, and a cache holds several.
    std::size_t chunk_elements = std::size_t{1} << 20;
    /// Chunks whose gradients are on their way or wait for the pool; at least 1.
    std::size_t chunks_ahead = 3;
  };

  /// All of these outlive it. `arena` has the memory that gradients pass through.
  PipelinedStep(ThreadPool& pool, std::shared_ptr<Arena> arena, Lane& in, Lane& out,
                const Options& options);
  PipelinedStep(ThreadPool& pool, std::shared_ptr<Arena> arena, Lane& in, Lane& out)
      : PipelinedStep(pool, std::move(arena), in, out, Options()) {}
  /// Finishes what was started.
  ~PipelinedStep();
  PipelinedStep(const PipelinedStep&) = delete;
  PipelinedStep& operator=(const PipelinedStep&) = delete;

  /// Copies every gradient into its operands.gradient, which must not be null, and returns the sum
  /// of squares of each, times `factor`. kInvalidArgument for a tensor without either memory.
  Status FetchGradients(std::span<const PipelinedTensor> tensors, float factor,
                        std::span<double> squares, TimePoint deadline);

  /// Begins a step and returns; `squares`, unless empty, is filled by Finish. What the spans refer
  /// to must stay until Finish. kInvalidArgument for a step before the last one's Finish, or for a
  /// tensor with no gradient; kResourceExhausted where memory or a thread is not to be had.
  Status Start(std::span<const PipelinedTensor> tensors, std::span<double> squares,
               TimePoint deadline);
  /// Blocks until tensor `index` of the step that was started is updated and, if it has a place
  /// there, on the device. The failure of the step if that ends it before.
  Status Wait(std::size_t index, TimePoint deadline);
  /// Blocks until all of it is done, and returns the failure of the step if it had one. Ok when
  /// nothing was started.
  Status Finish();

  /// Start and Finish, on the thread of the caller.
  Status Run(std::span<const PipelinedTensor> tensors, std::span<double> squares,
             TimePoint deadline);

 private:
  /// Copies that are one, of a part of one tensor: of some pieces of a chunk.
  struct Part {
    std::size_t tensor;
    std::size_t first;
    std::size_t count;
    std::byte* staged;  ///< Where its gradient is in host memory.
  };
  /// A chunk whose gradients are under way.
  struct Slot {
    std::shared_ptr<std::byte> memory;
    std::vector<Part> parts;
    CopyEvent arrived;
  };
  enum class Pass { kSums, kUpdate };

  Status Begin(std::span<const PipelinedTensor> tensors, std::span<double> squares,
               TimePoint deadline);
  void Drive();
  Status Prepare(std::span<const PipelinedTensor> tensors);
  std::size_t Chunks() const;
  std::span<const TileSpace::Piece> PiecesOf(std::size_t chunk) const;
  Status Update();
  /// Ends all copies because of `status`, which it returns.
  Status Stop(const Status& status);
  Status DriveChunks(Pass pass);
  Status BringIn(std::size_t chunk);
  Status Compute(std::size_t chunk, Pass pass);
  Status SendOut(const Slot& slot);
  void Publish(std::size_t tensors_done);

  ThreadPool& pool_;
  const std::shared_ptr<Arena> arena_;
  Lane& in_;
  Lane& out_;
  const std::size_t tiles_a_chunk_;
  TileSpace space_;
  std::vector<Slot> slots_;  ///< Chunk n uses slot n % size.
  std::size_t slot_bytes_ = 0;

  // Of the step that goes on; written before its thread begins.
  std::span<const PipelinedTensor> tensors_;
  std::span<double> squares_;
  float factor_ = 1;
  TimePoint deadline_ = kNoDeadline;
  std::thread thread_;

  /// When tensor t's last copy is on its way out; those below done_ are final.
  std::vector<CopyEvent> sent_;
  /// Tensors whose every chunk was updated and sent; release: sent_, acquire by who waits.
  std::atomic<std::size_t> done_{0};
  std::atomic<bool> ended_{false};  ///< Release: status_.
  Status status_;
  Doorbell progress_{};
};

}  // namespace tidegate::offload
