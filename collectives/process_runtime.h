#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/progress_engine.h"

namespace tidegate {

class CommunicatorImpl;

/// What all groups of a process share: the progress thread and the list of communicators for the
/// exit hook. A forked process gets a new one; its parent's is not touched there. Thread-safe.
class ProcessRuntime {
 public:
  static ProcessRuntime& Get();
  /// Null when no group was ever made in this process (a parent's groups do not count).
  static ProcessRuntime* GetIfStarted();

  /// Held by whoever uses it, because Shutdown lets go of it.
  std::shared_ptr<ProgressEngine> engine();
  void Register(const std::shared_ptr<CommunicatorImpl>& communicator,
                const std::string& stats_file);
  /// Reaper::AddLate of the process's reaper, or of the one whose callback this thread runs; false
  /// if there is none.
  static bool ReapLate(const std::shared_ptr<Operation>& operation);
  void Shutdown();

 private:
  std::mutex mutex_;
  std::shared_ptr<ProgressEngine> engine_;  // Guarded, as the rest.
  std::vector<std::weak_ptr<CommunicatorImpl>> communicators_;
  std::string stats_file_;
};

}  // namespace tidegate
