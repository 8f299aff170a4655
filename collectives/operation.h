#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/executor/request.h"
#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// One call of a user: one collective, several coalesced ones, or a send or receive. Shared between
/// the user's handle and whoever drives it, hence the shared_ptr; it finishes even when the handle is
/// dropped. Thread-safe.
///
/// Life: created by Communicator; driven by the caller's or the progress thread; completed exactly
/// once; then its callback runs, on the callback thread or on the thread that sets it.
class Operation {
 public:
  Operation(std::string name, std::uint64_t sequence, std::shared_ptr<void> keepalive)
      : name_(std::move(name)), sequence_(sequence), keepalive_(std::move(keepalive)) {}

  /// Collective name as c10d spells it, "send" or "recv".
  const std::string& name() const { return name_; }
  /// Group-wide number of the (first) collective; for send and recv their number in the group.
  std::uint64_t sequence() const { return sequence_; }

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  /// The outcome. REQUIRES: done().
  const Status& status() const { return status_; }

  /// Blocks until done or `timeout` (zero or negative: no limit of its own; the operation's deadline
  /// still holds). Returns the outcome, or kTimeout with the operation left running. Releases the
  /// caller's buffers once done.
  Status Wait(Nanoseconds timeout);

  /// Runs `callback` once after completion: on the callback thread, or here and now if already done.
  /// At most one callback.
  void OnDone(std::function<void()> callback);

  /// For the driver: publishes the outcome and wakes waiters. Returns the callback still to be run
  /// and the buffers still to be released, for a thread that may take other locks.
  struct Aftermath {
    std::function<void()> callback;
    std::shared_ptr<void> keepalive;
  };
  Aftermath Complete(Status status);

 private:
  enum : std::uint32_t { kPending = 0, kDone = 1 };

  std::shared_ptr<void> TakeKeepalive();

  const std::string name_;
  const std::uint64_t sequence_;
  Status status_;  // Written before state_ becomes kDone, read after.
  std::atomic<std::uint32_t> state_{kPending};
  std::mutex mutex_;  // Guards the two below.
  std::function<void()> callback_;
  std::shared_ptr<void> keepalive_;
};

}  // namespace tidegate
