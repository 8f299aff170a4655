// Whom a blocked Execution waits for, and whom those wait for in turn.

#include <algorithm>

#include "collectives/executor/execution.h"

namespace tidegate {

bool Execution::AwaitsPeers() const { return running_ || refused_; }

PendingWait Execution::Pending() const {
  if (!AwaitsPeers()) return {};
  PendingWait wait{.index = index_};
  if (running_ && lost_ >= 0) {
    wait.word = ~std::uint64_t{0};  // It will not come.
    wait.mark = kDoneMark;
    wait.peer = lost_;
    return wait;
  }
  if (running_ && finishing_) {
    wait.word = WordFor(0);
    wait.mark = kDoneMark;
    return wait;
  }
  if (!running_ || step_ == nullptr) return wait;
  const std::int64_t target = chunk_ + step_->wait_offset;
  if (step_->kind != StepKind::kWait || target < 0) return wait;
  wait.word = WordFor(target);
  wait.mark = step_->mark;
  wait.peer = step_->peer;
  return wait;
}

void Execution::PeersAwaitedBy(int rank, const PendingWait& wait, std::vector<int>* peers) const {
  peers->clear();
  for (int peer = 0; peer < transport_.ranks(); ++peer)
    if (peer != rank && !transport_.HasArrived(lane_, peer, wait.index)) peers->push_back(peer);
  if (!peers->empty()) return;
  for (int peer = 0; peer < transport_.ranks(); ++peer)
    if (peer != rank && (wait.peer == kAllPeers || wait.peer == peer) &&
        !transport_.HasReached(lane_, peer, wait.mark, wait.word))
      peers->push_back(peer);
}

void Execution::AwaitedPeers(std::vector<int>* peers) const {
  PeersAwaitedBy(rank_, Pending(), peers);
}

void Execution::PublishWait() const { transport_.PublishWait(lane_, Pending()); }

void Execution::LastAwaited(std::vector<int>* peers) const {
  std::vector<int> ahead;
  AwaitedPeers(&ahead);
  std::vector<bool> seen(static_cast<std::size_t>(transport_.ranks()), false);
  seen[static_cast<std::size_t>(rank_)] = true;
  std::vector<int> behind;
  peers->clear();
  while (!ahead.empty()) {
    const int peer = ahead.back();
    ahead.pop_back();
    if (seen[static_cast<std::size_t>(peer)]) continue;
    seen[static_cast<std::size_t>(peer)] = true;
    // A wait that is over is one of a rank that does not run: it would have gone on.
    PeersAwaitedBy(peer, transport_.WaitOf(lane_, peer), &behind);
    if (behind.empty()) peers->push_back(peer);
    ahead.insert(ahead.end(), behind.begin(), behind.end());
  }
  std::sort(peers->begin(), peers->end());
}

}  // namespace tidegate
