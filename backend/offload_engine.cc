#include "backend/offload_engine.h"

#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "common/check.h"
#include "common/config.h"
#include "common/fork_generation.h"
#include "common/function_ref.h"
#include "offload/threads/thread_plan.h"

namespace tidegate {
namespace {

/// What Python sees as MemoryError.
class OutOfHostMemory : public std::bad_alloc {
 public:
  explicit OutOfHostMemory(std::string message)
      : message_(std::make_shared<const std::string>(std::move(message))) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  // Shared: an exception must copy without throwing.
  std::shared_ptr<const std::string> message_;
};

struct EngineOfProcess {
  std::mutex mutex;
  OffloadEngine* engine = nullptr;
  std::uint64_t generation = 0;
};

EngineOfProcess& TheEngine() {
  static auto* const engine = new EngineOfProcess();
  return *engine;
}

}  // namespace

void ThrowOffloadStatus(const Status& status) {
  TIDEGATE_CHECK(!status.ok());
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      C10_THROW_ERROR(ValueError, status.message());
    case StatusCode::kUnsupported:
      C10_THROW_ERROR(NotImplementedError, status.message());
    case StatusCode::kResourceExhausted:
      throw OutOfHostMemory(status.message());
    default:
      C10_THROW_ERROR(Error, status.message());
  }
}

OffloadEngine& OffloadEngine::OfThisProcess() {
  EngineOfProcess& current = TheEngine();
  const std::lock_guard lock(current.mutex);
  // A child has no threads, and its parent's memory is not its own.
  if (current.engine == nullptr || current.generation != ForkGeneration()) {
    Result<OffloadEngine*> made = Make();
    if (!made.ok()) ThrowOffloadStatus(made.status());
    current.engine = made.value();
    current.generation = ForkGeneration();
  }
  return *current.engine;
}

Result<OffloadEngine*> OffloadEngine::Make() {
  const Result<Config> config = ProcessConfig();
  if (!config.ok()) return config.status();
  auto pool = std::make_unique<offload::ThreadPool>(offload::PlanThreads(
      offload::ReadThreadFacts(config.value().offload_threads, ProcessEnvironment())));
  const auto segment = offload::NodeSegment::Create({});
  if (!segment.ok()) return segment.status();
  const auto arena = MakeArena(*pool, segment.value(), 0);
  if (!arena.ok()) return arena.status();
  return new OffloadEngine(std::move(pool), arena.value());
}

OffloadEngine* OffloadEngine::IfMade() {
  EngineOfProcess& current = TheEngine();
  const std::lock_guard lock(current.mutex);
  return current.generation == ForkGeneration() ? current.engine : nullptr;
}

Result<std::shared_ptr<offload::Arena>> OffloadEngine::MakeArena(
    std::shared_ptr<const offload::NodeSegment> segment, int rank) {
  return MakeArena(*pool_, std::move(segment), rank);
}

Result<std::shared_ptr<offload::Arena>> OffloadEngine::MakeArena(
    offload::ThreadPool& pool, std::shared_ptr<const offload::NodeSegment> segment, int rank) {
  offload::ArenaOptions options;
  options.run = [&pool](std::size_t pieces, FunctionRef<Status(std::size_t)> commit) {
    return pool.Run(pieces, [commit](std::size_t piece, int) { return commit(piece); });
  };
  return offload::Arena::Create(std::move(segment), rank, std::move(options));
}

at::Tensor ZerosIn(offload::Arena& arena, at::IntArrayRef sizes, at::IntArrayRef strides,
                   at::ScalarType dtype) {
  std::size_t bytes = c10::elementSize(dtype);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  auto block = arena.AllocateShared(bytes);
  if (!block.ok()) ThrowOffloadStatus(block.status());
  const std::shared_ptr<std::byte>& memory = block.value();
  // An empty tensor has no block, and from_blob wants an address.
  void* const address = memory != nullptr ? memory.get() : static_cast<void*>(&TheEngine());
  at::Tensor tensor =
      at::from_blob(address, sizes, strides, [memory](void*) {}, at::TensorOptions().dtype(dtype));
  tensor.zero_();
  return tensor;
}

}  // namespace tidegate
