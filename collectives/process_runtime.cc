#include "collectives/process_runtime.h"

#include <atomic>
#include <utility>

#include "collectives/communicator_impl.h"
#include "collectives/statistics.h"
#include "collectives/transport/shm/node_service.h"
#include "common/fork_generation.h"
#include "common/log.h"

namespace tidegate {
namespace {

std::atomic<ProcessRuntime*> g_runtime{nullptr};

/// The parent's runtime is leaked in the child: its threads are not there, its locks may be held.
void ForgetParent() { g_runtime.store(nullptr); }

}  // namespace

ProcessRuntime* ProcessRuntime::GetIfStarted() { return g_runtime.load(); }

ProcessRuntime& ProcessRuntime::Get() {
  static const bool installed = [] {
    OnForkInChild(ForgetParent);
    return true;
  }();
  static_cast<void>(installed);
  ProcessRuntime* runtime = g_runtime.load();
  if (runtime != nullptr) return *runtime;
  // No lock, which might be held when the process is forked.
  auto fresh = std::make_unique<ProcessRuntime>();
  if (g_runtime.compare_exchange_strong(runtime, fresh.get())) return *fresh.release();
  return *runtime;
}

std::shared_ptr<ProgressEngine> ProcessRuntime::engine() {
  const std::lock_guard lock(mutex_);
  if (engine_ == nullptr) engine_ = std::make_shared<ProgressEngine>(SteadyClock());
  return engine_;
}

void ProcessRuntime::Register(const std::shared_ptr<CommunicatorImpl>& communicator,
                              const std::string& stats_file) {
  const std::lock_guard lock(mutex_);
  std::erase_if(communicators_, [](const auto& weak) { return weak.expired(); });
  communicators_.push_back(communicator);
  stats_file_ = stats_file;
}

bool ProcessRuntime::ReapLate(const std::shared_ptr<Operation>& operation) {
  if (Reaper* const here = Reaper::Here()) return here->AddLate(operation);
  ProcessRuntime* const runtime = GetIfStarted();
  if (runtime == nullptr) return false;
  const std::lock_guard lock(runtime->mutex_);  // Or else the engine might end with this call.
  return runtime->engine_ != nullptr && runtime->engine_->reaper().AddLate(operation);
}

void ProcessRuntime::Shutdown() {
  std::vector<std::weak_ptr<CommunicatorImpl>> communicators;
  std::shared_ptr<ProgressEngine> engine;
  std::string stats_file;
  {
    const std::lock_guard lock(mutex_);
    communicators.swap(communicators_);
    stats_file.swap(stats_file_);
  }
  for (const auto& weak : communicators)
    if (const std::shared_ptr<CommunicatorImpl> communicator = weak.lock())
      communicator->Shutdown();
  if (!stats_file.empty()) {
    const Status written = StatisticsRegistry::Process().AppendTo(stats_file);
    if (!written.ok()) Log(LogLevel::kWarn, written.message());
  }
  {
    const std::lock_guard lock(mutex_);
    engine = std::move(engine_);
  }
  engine.reset();
  NodeService::StopProcess();
}

void ShutdownProcess() {
  if (ProcessRuntime* const runtime = ProcessRuntime::GetIfStarted()) runtime->Shutdown();
}

}  // namespace tidegate
