#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "collectives/admission/gate.h"
#include "collectives/executor/request.h"
#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

class Communicator;

/// In place of a peer: a receive takes a message from whichever rank sends one.
inline constexpr int kAnySource = -1;

/// One call of a user: one collective, several coalesced ones, or a send or receive. Shared between
/// the user's handle and whoever drives it, hence the shared_ptr; it finishes even when the handle
/// is dropped. Thread-safe.
///
/// Life: created by Communicator; driven by the caller's or the progress thread; completed exactly
/// once; then its callback runs, on the callback thread or on the thread that sets it.
class Operation {
 public:
  /// Without Hold it keeps nothing, and a signal aborts nothing. `name`: of static storage.
  Operation(std::string_view name, std::uint64_t sequence);

  /// Before others see it: what to hold until it is done, and the group that is aborted, if it is
  /// still there, when a signal interrupts a waiter.
  void Hold(std::shared_ptr<void> keepalive, std::weak_ptr<Communicator> group);

  /// Before others see it: of an all-gather that a gate counts. Whoever waits for the operation
  /// promotes it.
  void set_ticket(std::shared_ptr<Ticket> ticket) { ticket_ = std::move(ticket); }

  /// Collective name as c10d spells it, "send" or "recv".
  std::string_view name() const { return name_; }
  /// Group-wide number of the (first) collective; for send and recv their number in the group.
  std::uint64_t sequence() const { return sequence_; }
  std::string Label() const;  ///< "all_gather seq 7".

  /// Rank in the group that a receive got its message from; -1 for all else and before it is done.
  int source() const { return source_.load(std::memory_order_relaxed); }
  /// For the driver, before Complete.
  void set_source(int rank) { source_.store(rank, std::memory_order_relaxed); }

  bool done() const { return state_.load(std::memory_order_seq_cst) == kDone; }
  /// Somebody waits for it in another way than Wait.
  void Want();
  /// Whether somebody sleeps until it is done, or has wanted it.
  bool awaited() const { return state_.load(std::memory_order_relaxed) == kAwaited; }
  /// The outcome. REQUIRES: done().
  const Status& status() const { return status_; }

  /// Blocks until done or `timeout` (zero or negative: no limit of its own; the operation's
  /// deadline still holds). Returns the outcome, or kTimeout with the operation left running. The
  /// caller's buffers are released when this returns a final outcome. kAborted in a forked
  /// child, where nobody drives it. Must not be called holding the GIL.
  Status Wait(Nanoseconds timeout);

  /// Runs `callback` once after `operation` completes: on a callback thread (see Reaper), or here
  /// and now if already done and no earlier callback of the process is left to be run. At most one
  /// callback. Static, for an operation that knew its shared_ptr would cost every call some
  /// atomics.
  static void OnDone(const std::shared_ptr<Operation>& operation, std::function<void()> callback);

  /// For the driver: publishes the outcome and wakes waiters; drops nothing and runs nothing.
  void Complete(Status status);
  /// Complete and Reap at once, without a lock, of an operation that holds nothing and that nobody
  /// can have given a callback.
  void CompleteUnseen(Status status);
  /// For the reaper, which runs the callback from now on: whether there is one. REQUIRES: done().
  bool HandOver();
  /// The callback, as Reaper::CallbackHere() numbers it, in which OnDone was called; 0: in none.
  std::uint64_t callback_set_by() const { return callback_set_by_; }
  /// Runs the callback and releases the caller's buffers, on a thread that may take the GIL.
  /// REQUIRES: done().
  void Reap();
  /// Releases the caller's buffers alone.
  void DropBuffers();

 private:
  Status AwaitDone(Nanoseconds timeout);
  void RunCallback();

  enum : std::uint32_t { kPending = 0, kAwaited = 1, kDone = 2 };  ///< kAwaited: by a sleeper.

  const std::string_view name_;
  const std::uint64_t sequence_;
  const std::uint64_t generation_;     ///< ForkGeneration() of the process that drives it.
  bool holds_ = false;                 ///< Whether Hold was called; constant once others see it.
  std::weak_ptr<Communicator> group_;  // Constant once others see it, as the next.
  std::shared_ptr<Ticket> ticket_;
  Status status_;  // Written before state_ becomes kDone (release), read after (acquire).
  std::atomic<std::uint32_t> state_{kPending};
  std::atomic<int> source_{-1};
  std::mutex mutex_;
  std::function<void()> callback_;     // Guarded by mutex_.
  bool handed_over_ = false;           // Guarded by mutex_.
  std::uint64_t callback_set_by_ = 0;  // Written before the callback is handed over, then read.
  // Held while the buffers are dropped, so that nobody returns from Wait before they are. Never
  // taken by a thread that holds the GIL, which dropping a tensor may need.
  std::mutex keepalive_mutex_;
  std::shared_ptr<void> keepalive_;  // Guarded by keepalive_mutex_.
};

}  // namespace tidegate
