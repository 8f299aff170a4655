#include "collectives/admission/gate.h"

#include <algorithm>
#include <utility>

#include "common/futex.h"

namespace tidegate {

Ticket::Ticket(std::shared_ptr<Gate> gate, std::shared_ptr<GateLine> line, std::uint64_t bytes,
               bool urgent)
    : gate_(std::move(gate)), line_(std::move(line)), bytes_(bytes) {
  gate_->Come(*this, urgent);
}

void Ticket::Promote() {
  if (!admitted()) gate_->Promote(*this);
}

void Ticket::Leave() {
  // Also in a forked process, whose copy of the lock nobody may ever release.
  if (!has_left_.load(std::memory_order_acquire)) gate_->Leave(*this);
}

void Ticket::Sleep(TimePoint until) {
  std::uint32_t waiting = kWaiting;
  word_.compare_exchange_strong(waiting, kAwaited, std::memory_order_relaxed);
  FutexWait(word_, kAwaited, until);
}

std::uint64_t Ticket::SignsOfLife() const { return gate_->SignsOfLife(*this); }

void Gate::SetBudget(const Budget& budget) {
  const std::lock_guard lock(mutex_);
  budget_ = budget;
  on_.store(budget.ops || budget.bytes, std::memory_order_relaxed);
  AdmitThoseThatMay();
  counters_.high_water_ops = in_flight_.size();
  counters_.high_water_bytes = bytes_;
}

Gate::Counters Gate::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Gate::Come(Ticket& ticket, bool urgent) {
  const std::lock_guard lock(mutex_);
  ticket.admissions_ = admissions_;
  // The others that wait would not fit any better than before.
  if (ticket.line_->in_flight_ == 0 || (waiting_.empty() && Fits(ticket))) return Admit(ticket);
  waiting_.push_back(&ticket);
  if (urgent) return PromoteLocked(ticket);
  ticket.came_ = clock_.Now();
  ++counters_.waits;
}

void Gate::Promote(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  PromoteLocked(ticket);
}

/// REQUIRES: mutex_ is held, as below.
void Gate::PromoteLocked(Ticket& ticket) {
  const auto last = std::find(waiting_.begin(), waiting_.end(), &ticket);
  if (last == waiting_.end()) return;
  const auto end = std::stable_partition(
      waiting_.begin(), last + 1, [&](Ticket* other) { return other->line_ != ticket.line_; });
  std::for_each(end, last + 1, [&](Ticket* promoted) {
    if (!Fits(*promoted)) ++counters_.promotions;
    Admit(*promoted);
  });
  waiting_.erase(end, last + 1);
}

void Gate::Leave(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket.has_left_.load(std::memory_order_relaxed)) return;
  if (ticket.admitted()) {
    bytes_ -= ticket.bytes_;
    --ticket.line_->in_flight_;
    std::erase(in_flight_, &ticket);
  } else {
    std::erase(waiting_, &ticket);
  }
  AdmitThoseThatMay();
  ticket.has_left_.store(true, std::memory_order_release);
}

/// A number that changes when something that was admitted before `ticket` came leaves or gets on:
/// so often, and no more.
std::uint64_t Gate::SignsOfLife(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t signs = 0;
  for (const Ticket* const other : in_flight_)
    if (other->admissions_ < ticket.admissions_)
      signs += 1 + other->progress_.load(std::memory_order_relaxed);
  return signs;
}

bool Gate::Fits(const Ticket& ticket) const {
  if (budget_.ops && in_flight_.size() >= *budget_.ops) return false;
  return !budget_.bytes ||
         (ticket.bytes_ <= *budget_.bytes && bytes_ <= *budget_.bytes - ticket.bytes_);
}

void Gate::AdmitThoseThatMay() {
  bool is_full = false;
  std::size_t kept = 0;
  for (Ticket* const ticket : waiting_) {
    if (ticket->line_->in_flight_ == 0 || (!is_full && Fits(*ticket))) {
      Admit(*ticket);
    } else {
      is_full = true;
      waiting_[kept++] = ticket;
    }
  }
  waiting_.resize(kept);
}

void Gate::Admit(Ticket& ticket) {
  ticket.admissions_ = admissions_++;
  in_flight_.push_back(&ticket);
  bytes_ += ticket.bytes_;
  ++ticket.line_->in_flight_;
  counters_.high_water_ops = std::max<std::uint64_t>(counters_.high_water_ops, in_flight_.size());
  counters_.high_water_bytes = std::max(counters_.high_water_bytes, bytes_);
  if (ticket.came_ != TimePoint{}) counters_.held += clock_.Now() - ticket.came_;
  if (ticket.word_.exchange(Ticket::kAdmitted, std::memory_order_acq_rel) == Ticket::kAwaited)
    FutexWakeAll(ticket.word_);
}

}  // namespace tidegate
