#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/operation.h"

namespace tidegate {

/// Where callbacks of finished operations run and their buffers are dropped: both may need the GIL,
/// which the progress thread must never wait for. Thread-safe.
///
/// Callbacks run one at a time, in the order of completion, for what they start must be in one
/// order on all ranks. A callback may publish a result to those who wait for it, call AwaitTurn()
/// and then run the user's code: that lets another thread begin it ahead of its turn, so that
/// whoever waits for the result gets it, while user code keeps its order. Begun ahead are callbacks
/// that were set by a callback that is still running, which may be waiting for just that, and those
/// that the running one has kept waiting for a tenth of `patience`.
///
/// A callback that has slept for `patience` may be waiting for user code that is behind it: it
/// loses its turn to the next one, with a warning. One that computes keeps it, however long that
/// takes.
///
/// What has no callback waits for none. Two threads stay once they are there; more of them run
/// while callbacks wait, up to kMostThreads.
class Reaper {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::size_t kMostThreads = 256;
  static constexpr std::size_t kMostIdleThreads = 2;
  /// Limits of beginning ahead, by the threads there are, while the running callback computes and
  /// while it sleeps.
  static constexpr std::size_t kMostAheadOfBusy = 16;
  static constexpr std::size_t kMostAheadOfSleeper = 128;
  static constexpr std::chrono::milliseconds kPatience{1000};

  explicit Reaper(Clock::duration patience = kPatience) : patience_(patience) {}
  /// Blocks until everything handed over is reaped. Must not run while holding the GIL.
  ~Reaper();

  /// Starts the first thread on first use.
  void Add(std::vector<std::shared_ptr<Operation>>* operations);
  /// Of one that was handed over before its callback was set: false, with nothing done, if no
  /// callback is queued or running that it would have to wait for.
  bool AddLate(const std::shared_ptr<Operation>& operation);

  /// In a callback: returns when all earlier ones have returned or lost their turn. Elsewhere: at
  /// once.
  static void AwaitTurn();
  /// The reaper whose callback the calling thread runs; null on other threads.
  static Reaper* Here();
  /// A number for that callback, not used again in this process; 0 on other threads.
  static std::uint64_t CallbackHere();

  /// `probe` takes and gives back a lock that callbacks run under (the GIL). One that merely waits
  /// for that lock is not asleep: it loses no turn before the probe has got it. Null: there is
  /// none.
  static void SetLockProbe(void (*probe)());

 private:
  struct Item {
    std::uint64_t number = 0;
    std::shared_ptr<Operation> operation;
    Clock::time_point queued_at;
  };
  /// A callback that a thread has begun and that has not returned.
  struct Run {
    long thread = 0;  ///< As the kernel numbers it.
    Clock::time_point begun_at;
    Clock::time_point sampled_at;
    Clock::time_point awake_at;  ///< When it was last seen running, or able to run.
    bool urgent = false;         ///< Begun ahead of its turn for the one that set it.
    bool parked = false;         ///< In AwaitTurn.
    bool probed = false;
    bool passed = false;  ///< Has lost its turn.
  };
  using Runs = std::map<std::uint64_t, Run>;
  using Lock = std::unique_lock<std::mutex>;

  void Loop();
  /// All REQUIRE mutex_ held, which those that get the lock give up meanwhile.
  void Push(std::shared_ptr<Operation> operation);
  bool DropBuffers(Lock& lock);
  bool BeginOne(Lock& lock);
  bool MayBeginNext();
  void RunItem(Item item, bool urgent, Lock& lock);
  void Await(std::uint64_t number, Lock& lock);
  bool HasTurn(std::uint64_t number) const;
  /// The running callback whose turn it is, or will be as soon as it notices; end() if none runs.
  Runs::iterator Holder();
  bool SomebodyWaits() const { return !queue_.empty() || parked_ > 0; }
  void Sample(Run* run) const;
  /// Takes the turn from a holder that has slept for too long. True if the lock was given up.
  bool WatchHolder(Lock& lock);
  /// Sees to it that a thread looks after what is queued.
  void EnsureStandby();
  /// Gives up the calling thread, which is to return at once.
  void Retire();
  void JoinRetired();

  const Clock::duration patience_;
  const Clock::duration ahead_after_ = patience_ / 10;
  /// How often one looks at a callback that keeps others waiting.
  const Clock::duration tick_ = patience_ / 100;
  std::mutex mutex_;
  std::condition_variable changed_;  ///< For idle threads.
  std::condition_variable turns_;    ///< For those in AwaitTurn.
  // All guarded.
  std::vector<std::shared_ptr<Operation>> without_callback_;
  std::deque<Item> urgent_;  ///< Set by a callback that runs.
  std::deque<Item> queue_;   ///< The rest; both in order of numbers.
  Runs running_;
  bool stopping_ = false;
  bool probing_ = false;
  std::size_t parked_ = 0;
  std::size_t idle_ = 0;  ///< Threads that are waiting for something to do.
  std::vector<std::thread> threads_;
  std::vector<std::thread> retired_;  ///< Have returned or are about to; not joined yet.
};

}  // namespace tidegate
