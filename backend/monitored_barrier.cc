#include "backend/monitored_barrier.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "collectives/interrupt.h"
#include "common/units.h"

namespace tidegate {
namespace {

// As in store_bootstrap.cc, but a barrier may last for minutes: 5 ms leave the server idle.
constexpr Nanoseconds kFirstPause = std::chrono::microseconds(50);
constexpr Nanoseconds kLongestPause = std::chrono::milliseconds(5);
// How often a look at the store is accompanied by one at the group and at signals.
constexpr Nanoseconds kHealthInterval = std::chrono::milliseconds(50);

constexpr const char* kPassed = "passed";

/// Zero is a deadline, too: the barrier passes if everybody is there.
TimePoint DeadlineOf(Nanoseconds timeout) {
  const TimePoint now = SteadyClock().Now();
  return timeout.count() == 0 ? now : DeadlineAfter(now, timeout);
}

std::string Join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

MonitoredBarrier::MonitoredBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int ranks,
                                   std::vector<std::int64_t> global_ranks)
    : store_(std::move(store)),
      rank_(rank),
      ranks_(ranks),
      global_ranks_(std::move(global_ranks)) {}

Status MonitoredBarrier::Pass(Nanoseconds timeout, bool name_all,
                              const std::function<Status()>& health) {
  const std::lock_guard lock(mutex_);
  if (Status state = health(); !state.ok() || ranks_ == 1) return state;
  ++number_;
  const auto store_failed = [](const std::string& reason) {
    return Status(StatusCode::kInternal, "the c10d store failed: " + reason);
  };
  try {
    return rank_ == 0 ? PassAsRoot(timeout, name_all, health) : PassAsOther(timeout, health);
  } catch (const c10::Error& error) {
    return store_failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return store_failed(error.what());
  }
}

Status MonitoredBarrier::PassAsRoot(Nanoseconds timeout, bool name_all,
                                    const std::function<Status()>& health) {
  const TimePoint deadline = DeadlineOf(timeout);
  std::vector<std::string> arrivals;
  for (int rank = 1; rank < ranks_; ++rank) arrivals.push_back(ArrivalKey(number_, rank));
  store_->set(ArrivalKey(number_, rank_), "1");
  bool complete = false;
  Status waited = Poll(deadline, health, [&] { return store_->check(arrivals); }, &complete);
  if (waited.ok() && complete) {
    store_->set(OutcomeKey(number_), kPassed);
    ForgetEarlier();
    return Status();
  }
  const std::string text =
      waited.ok() ? NameMissing(Missing(), name_all, timeout) : waited.message();
  store_->set(OutcomeKey(number_), text);
  if (!waited.ok()) return waited;
  return Status(StatusCode::kTimeout, "[Rank 0]: " + text + ". Rank 0 timed out in " +
                                          "monitoredBarrier after " + FormatMilliseconds(timeout));
}

Status MonitoredBarrier::PassAsOther(Nanoseconds timeout, const std::function<Status()>& health) {
  const TimePoint deadline = DeadlineOf(timeout);
  const std::string own = std::to_string(rank_);
  const std::vector<std::string> outcome{OutcomeKey(number_)};
  if (store_->check(outcome)) {
    return Status(StatusCode::kTimeout, "[Rank " + own + "]: Rank " + own +
                                            " came to monitoredBarrier after rank 0 had given it "
                                            "up: " +
                                            store_->get_to_str(outcome[0]));
  }
  store_->set(ArrivalKey(number_, rank_), "1");
  bool decided = false;
  Status waited = Poll(deadline, health, [&] { return store_->check(outcome); }, &decided);
  if (!waited.ok()) return waited;
  std::string reason = "rank 0 has not decided; " + NameMissing(Missing(), true, timeout);
  if (decided) {
    reason = store_->get_to_str(outcome[0]);
    if (reason == kPassed) return Status();
    reason = "rank 0 says: " + reason;
  }
  return Status(StatusCode::kTimeout,
                "[Rank " + own + "]: Rank " + own +
                    " successfully reached monitoredBarrier, but received errors while waiting for "
                    "send/recv from rank 0. Please check rank 0 logs for faulty rank. (" +
                    reason + ")");
}

Status MonitoredBarrier::Poll(TimePoint deadline, const std::function<Status()>& health,
                              const std::function<bool()>& found, bool* was_found) const {
  const Clock& clock = SteadyClock();
  TimePoint next_health{};
  for (Nanoseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    *was_found = found();
    const TimePoint now = clock.Now();
    if (*was_found || now >= deadline) return Status();
    if (now >= next_health) {
      if (Interrupted()) return Status(StatusCode::kInterrupted, "interrupted by a signal");
      if (Status state = health(); !state.ok()) return state;
      next_health = now + kHealthInterval;
    }
    std::this_thread::sleep_for(std::min<Nanoseconds>(pause, deadline - now));
  }
}

std::vector<int> MonitoredBarrier::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && !store_->check({ArrivalKey(number_, rank)})) missing.push_back(rank);
  }
  return missing;
}

// The words are those that programs and torch's own tests look for.
std::string MonitoredBarrier::NameMissing(const std::vector<int>& missing, bool name_all,
                                          Nanoseconds timeout) const {
  const std::string how = " failed to pass monitoredBarrier in " + FormatMilliseconds(timeout);
  if (missing.empty()) return "the last rank came to monitoredBarrier at the deadline";
  const bool plural = name_all && missing.size() > 1;
  std::string text =
      plural ? "Ranks " + Join(missing) + how : "Rank " + std::to_string(missing.front()) + how;
  if (!plural && missing.size() > 1) {
    text += " (and " + std::to_string(missing.size() - 1) +
            " more; wait_all_ranks=True names them all)";
  }
  if (global_ranks_.empty()) return text;
  std::vector<int> global;
  for (const int rank : missing) {
    global.push_back(static_cast<int>(global_ranks_[static_cast<std::size_t>(rank)]));
    if (!plural) break;
  }
  return text + " (in the job: " + Join(global) + ")";
}

std::string MonitoredBarrier::ArrivalKey(std::uint64_t number, int rank) const {
  return "monitored_barrier/" + std::to_string(number) + "/" + std::to_string(rank);
}

std::string MonitoredBarrier::OutcomeKey(std::uint64_t number) const {
  return "monitored_barrier/" + std::to_string(number) + "/outcome";
}

/// Everybody has come to this barrier, so nobody looks at an earlier one any more.
void MonitoredBarrier::ForgetEarlier() {
  for (std::uint64_t number = forgotten_ + 1; number < number_; ++number) {
    for (int rank = 0; rank < ranks_; ++rank) store_->deleteKey(ArrivalKey(number, rank));
    store_->deleteKey(OutcomeKey(number));
  }
  forgotten_ = number_ - 1;
}

}  // namespace tidegate
