#include "common/ipc/doorbell.h"

#include <type_traits>

#include "common/futex.h"

// ThreadSanitizer does not model fences and GCC says so. Nothing is lost: a waiter learns of data
// through the acquire load of its condition, the fences only decide whether it goes to sleep.
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

namespace tidegate {

static_assert(std::is_standard_layout_v<Doorbell> && std::is_trivially_destructible_v<Doorbell>);

std::uint32_t Doorbell::Arm() {
  sleepers_.fetch_add(1, std::memory_order_relaxed);
  // Pairs with the fence in Ring: the announcement is visible before the condition is re-checked.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Pairs with the release in Ring: a ticket that already counts a ring carries what was done
  // before it, so the re-check sees the condition.
  return rings_.load(std::memory_order_acquire);
}

void Doorbell::Sleep(std::uint32_t ticket, TimePoint deadline) {
  FutexWait(rings_, ticket, deadline);
  Disarm();
}

void Doorbell::Disarm() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }

void Doorbell::Ring() {
  // Pairs with the fence in Arm: the condition is visible before the sleepers are counted. A waiter
  // that died while armed stays counted, which costs a system call a ring and nothing else.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_relaxed) == 0) return;
  rings_.fetch_add(1, std::memory_order_release);
  FutexWakeAll(rings_);
}

}  // namespace tidegate
