#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/operation.h"

namespace tidegate {

/// The thread on which callbacks of finished operations run and their buffers are dropped: both may
/// need the GIL, which the progress thread must never wait for. Thread-safe.
class Reaper {
 public:
  Reaper() = default;
  /// Blocks until everything handed over is reaped. Must not run while holding the GIL.
  ~Reaper();

  /// Starts the thread on first use.
  void Add(std::vector<std::shared_ptr<Operation>>* operations);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> operations_;  // Guarded, as the rest.
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tidegate
