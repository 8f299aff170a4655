#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/admission/limits.h"
#include "common/clock.h"

namespace tidegate {

class Gate;

/// One lane of one group, as a gate sees it: what goes through it passes the gate in the order in
/// which it came there.
class GateLine {
  friend class Gate;
  std::uint64_t in_flight_ = 0;  // Guarded by the gate.
};

/// One operation's way through a gate, from when it comes until it leaves. Thread-safe.
class Ticket {
 public:
  /// Comes to the gate. `urgent`: as if promoted at once. A line's tickets must be made in the
  /// order of its operations.
  Ticket(std::shared_ptr<Gate> gate, std::shared_ptr<GateLine> line, std::uint64_t bytes,
         bool urgent);
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() { Leave(); }

  bool admitted() const { return word_.load(std::memory_order_acquire) == kAdmitted; }
  /// Lets it pass, with everything before it in its line, over budget if need be.
  void Promote();
  /// Its operation gets on, for those who wait for room meanwhile.
  void GetsOn() { progress_.fetch_add(1, std::memory_order_relaxed); }
  /// It is done, or will never be: makes room. Idempotent; takes no lock after the first time.
  void Leave();

  /// Returns with the ticket admitted: when there is room, or promoted at `deadline`, when
  /// `should_give_up` says so, or when nothing that was in flight when it came has left or got on
  /// for `patience`: that may wait for peers that wait for what this thread would call next. What
  /// comes later counts for nothing, so that patience ends. One thread. Looks around every
  /// kLookAround and before the first sleep.
  template <typename Asked>
  void WaitForRoom(const Clock& clock, TimePoint deadline, Nanoseconds patience,
                   Asked&& should_give_up);

  static constexpr Nanoseconds kLookAround = std::chrono::milliseconds(50);

 private:
  friend class Gate;
  enum : std::uint32_t { kWaiting = 0, kAwaited = 1, kAdmitted = 2 };  ///< kAwaited: by a sleeper.

  void Sleep(TimePoint until);
  std::uint64_t SignsOfLife() const;

  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<GateLine> line_;
  const std::uint64_t bytes_;
  TimePoint came_{};                   // Guarded by the gate, as the next; set if it had to wait.
  std::uint64_t admissions_ = 0;       // Of the gate before it came, then before its own.
  std::atomic<bool> has_left_{false};  // Written under the gate's lock.
  std::atomic<std::uint64_t> progress_{0};
  /// Never shrinks. A host thread sleeps on it; a device may wait for it on its stream.
  std::atomic<std::uint32_t> word_{kWaiting};
};

/// Holds what is in flight, from admission to Leave, to a budget of operations and bytes.
///
/// - Tickets of one line are admitted in their order, and the oldest of a line that has not left at
///   once, whatever the budget: n lines in use may have n - 1 operations more in flight than it.
/// - Otherwise those that fit, in the order in which they came, across lines: the first one that
///   does not fit holds back all behind it, so that large ones do not starve. It waits for no more
///   than what was admitted before it.
/// - Promoted ones pass with all before them in their line.
///
/// Thread-safe. Under its one lock the lists of what is in flight and of what waits are searched.
class Gate {
 public:
  explicit Gate(const Clock& clock) : clock_(clock) {}

  /// From now on. The high-water marks begin anew.
  void SetBudget(const Budget& budget);
  /// Whether there is any budget. One relaxed load.
  bool on() const { return on_.load(std::memory_order_relaxed); }

  struct Counters {
    std::uint64_t high_water_ops = 0;    ///< Most in flight at a time since the budget was set.
    std::uint64_t high_water_bytes = 0;  ///< The same in bytes.
    std::uint64_t waits = 0;             ///< Tickets that were not admitted at once.
    std::uint64_t promotions = 0;        ///< Tickets admitted over budget because of a promotion.
    Nanoseconds held{0};                 ///< How long tickets waited, all together.
  };
  Counters counters() const;

 private:
  friend class Ticket;
  void Come(Ticket& ticket, bool urgent);
  void Promote(Ticket& ticket);
  void Leave(Ticket& ticket);
  bool Fits(const Ticket& ticket) const;
  void PromoteLocked(Ticket& ticket);
  void AdmitThoseThatMay();
  void Admit(Ticket& ticket);
  std::uint64_t SignsOfLife(const Ticket& ticket) const;

  const Clock& clock_;
  std::atomic<bool> on_{false};
  mutable std::mutex mutex_;
  Budget budget_;  // Guarded, as the rest.
  std::uint64_t bytes_ = 0;
  std::uint64_t admissions_ = 0;
  std::vector<const Ticket*> in_flight_;
  std::vector<Ticket*> waiting_;  ///< In the order in which they came.
  Counters counters_;
};

template <typename Asked>
void Ticket::WaitForRoom(const Clock& clock, TimePoint deadline, Nanoseconds patience,
                         Asked&& should_give_up) {
  std::uint64_t seen = SignsOfLife();
  TimePoint quiet_since = clock.Now();
  while (!admitted()) {
    const TimePoint now = clock.Now();
    if (const std::uint64_t signs = SignsOfLife(); signs != seen) {
      seen = signs;
      quiet_since = now;
    }
    if (now >= deadline || now - quiet_since >= patience || should_give_up()) return Promote();
    Sleep(std::min({deadline, quiet_since + patience, now + kLookAround}));
  }
}

}  // namespace tidegate
