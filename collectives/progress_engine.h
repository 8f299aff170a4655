#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/lane.h"
#include "collectives/reaper.h"
#include "common/clock.h"
#include "common/ipc/doorbell.h"

namespace tidegate {

/// Something that the progress thread drives: one rank's side of one group.
class Drivable {
 public:
  virtual ~Drivable() = default;
  /// Goes on without blocking, and not for long. Called on the progress thread only, in a round
  /// once for the urgent turn and, if that has deferred something, for the other one.
  virtual DriveResult Drive(FinishedOperations* finished, Turn turn) = 0;
  virtual Nanoseconds max_sleep() const = 0;
  /// What wakes the progress thread on this group's behalf; null when nothing will any more.
  virtual std::shared_ptr<Doorbell> doorbell() const = 0;
};

/// The process's progress thread, shared by all groups: serves whatever is ready and sleeps on one
/// doorbell when nothing is; on one of its own, which no peer rings, when nothing that it drives
/// waits for peers, lest every signal of theirs to other threads wake it. Thread-safe.
class ProgressEngine {
 public:
  explicit ProgressEngine(const Clock& clock);
  /// Stops both threads; what is unfinished stays so. Must not run while holding the GIL.
  ~ProgressEngine();

  /// Has `drivable` driven until it has nothing pending. Starts the thread on first use.
  void Notify(const std::shared_ptr<Drivable>& drivable);
  Reaper& reaper() { return reaper_; }

 private:
  struct Entry {
    std::shared_ptr<Drivable> drivable;
    bool notified = true;  ///< Since it was last asked whether anything is pending.
  };

  void Loop();
  DriveResult DriveAll(Nanoseconds* max_sleep);
  void WakeLocked();

  const Clock& clock_;
  Reaper reaper_;
  std::mutex mutex_;
  std::vector<Entry> entries_;          // Guarded, as the rest.
  std::shared_ptr<Doorbell> doorbell_;  ///< What the thread sleeps on while it waits for peers.
  Doorbell own_doorbell_;               ///< And while it does not.
  bool stopping_ = false;
  std::thread thread_;
  // Of the thread.
  std::vector<std::shared_ptr<Drivable>> round_;
  std::vector<Drivable*> deferred_;  ///< Of round_.
  FinishedOperations finished_;
};

}  // namespace tidegate
