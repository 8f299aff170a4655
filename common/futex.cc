#include "common/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace tidegate {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Not FUTEX_PRIVATE_FLAG: the word may be shared with other processes.
long Futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, TimePoint deadline) {
  if (deadline == kNoDeadline) {
    Futex(word, FUTEX_WAIT, expected, nullptr);
    return;
  }
  const Nanoseconds left = deadline - SteadyClock().Now();
  if (left <= Nanoseconds::zero()) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec timeout{.tv_sec = static_cast<time_t>(seconds.count()),
                         .tv_nsec = static_cast<long>((left - seconds).count())};
  Futex(word, FUTEX_WAIT, expected, &timeout);
}

void FutexWakeAll(const std::atomic<std::uint32_t>& word) {
  Futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace tidegate
