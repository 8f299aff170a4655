#include "collectives/verifier/steady_state.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/verifier/where.h"

namespace tidegate::verifier {
namespace {

/// What must come before what: `to` happens at least `iterations` after `from`, or in the same one
/// but later.
struct Edge {
  int from;
  int to;
  std::int64_t iterations;
};

struct Node {
  int rank;
  int step;
};

class Loop {
 public:
  Loop(Orbit orbit, std::span<const Schedule> schedules) : orbit_(orbit), schedules_(schedules) {
    for (std::size_t rank = 0; rank < schedules_.size(); ++rank) AddProgram(static_cast<int>(rank));
    for (std::size_t rank = 0; rank < schedules_.size(); ++rank) AddWaits(static_cast<int>(rank));
  }

  Status Check() {
    const bool looks_ahead = std::any_of(edges_.begin(), edges_.end(),
                                         [](const Edge& edge) { return edge.iterations < 0; });
    return looks_ahead ? CheckWithRelaxation() : CheckWithinIterations();
  }

 private:
  static std::size_t At(std::int64_t index) { return static_cast<std::size_t>(index); }

  /// The waits and signals of `rank` in the order in which one period runs them, as a circle.
  void AddProgram(int rank) {
    const Schedule& schedule = schedules_[At(rank)];
    std::vector<std::pair<int, int>> order;  // Iteration within the period, step.
    first_signal_.emplace_back();
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait)
        order.emplace_back(step.lag % schedule.period, static_cast<int>(i));
    }
    std::sort(order.begin(), order.end());
    node_of_.emplace_back(schedule.steps.size(), -1);
    const int first = static_cast<int>(nodes_.size());
    for (const auto& [iteration, step] : order) {
      node_of_.back()[At(step)] = static_cast<int>(nodes_.size());
      nodes_.push_back({rank, step});
      const Step& it = schedule.steps[At(step)];
      if (it.kind == StepKind::kSignal) NoteSignal(rank, it, step);
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t next = (i + 1) % order.size();
      const int wraps = next == 0 ? schedule.period : 0;
      edges_.push_back({first + static_cast<int>(i), first + static_cast<int>(next),
                        order[next].first - order[i].first + wraps});
    }
  }

  void NoteSignal(int rank, const Step& step, int index) {
    auto& signals = first_signal_[At(rank)];
    if (signals.size() <= At(step.mark)) signals.resize(At(step.mark) + 1);
    signals[At(step.mark)].push_back(index);
  }

  /// The first step by which `peer` tells rank `me` of each chunk at `mark`; -1 for none.
  int SignalFor(int peer, int mark, int me) const {
    const int there = orbit_.RepresentativeOf(peer);
    const auto& signals = first_signal_[At(there)];
    if (At(mark) >= signals.size()) return -1;
    int first = -1;
    for (const int index : signals[At(mark)]) {
      const Step& step = schedules_[At(there)].steps[At(index)];
      if (step.peer != kAllPeers && step.peer != orbit_.Back(me, orbit_.ShiftOf(peer))) continue;
      if (first < 0 ||
          std::pair(step.lag, index) < std::pair(schedules_[At(there)].steps[At(first)].lag, first))
        first = index;
    }
    return first;
  }

  void AddWaits(int rank) {
    const Schedule& schedule = schedules_[At(rank)];
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& wait = schedule.steps[i];
      if (wait.kind != StepKind::kWait) continue;
      const bool all = wait.peer == kAllPeers;
      for (int peer = all ? 0 : wait.peer; peer < (all ? orbit_.ranks() : wait.peer + 1); ++peer) {
        if (peer == rank) continue;
        const int signal = SignalFor(peer, wait.mark, rank);
        if (signal < 0) continue;
        const int there = orbit_.RepresentativeOf(peer);
        const Step& step = schedules_[At(there)].steps[At(signal)];
        edges_.push_back(
            {node_of_[At(there)][At(signal)], node_of_[At(rank)][i],
             std::int64_t{wait.lag} - step.lag - std::int64_t{wait.wait_offset} * schedule.period});
      }
    }
  }

  /// Where no rank waits for a later iteration of another, a circle stays in one iteration: take
  /// away what waits for nothing until nothing is left.
  Status CheckWithinIterations() {
    std::vector<int> before(nodes_.size(), 0);
    std::vector<std::vector<int>> after(nodes_.size());
    for (const Edge& edge : edges_) {
      if (edge.iterations != 0) continue;
      ++before[At(edge.to)];
      after[At(edge.from)].push_back(edge.to);
    }
    std::vector<int> ready;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (before[i] == 0) ready.push_back(static_cast<int>(i));
    std::size_t done = 0;
    for (; done < ready.size(); ++done)
      for (const int next : after[At(ready[done])])
        if (--before[At(next)] == 0) ready.push_back(next);
    if (done == nodes_.size()) return Status();
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (before[i] > 0 && StepOf(nodes_[i]).kind == StepKind::kWait) return Deadlock(nodes_[i]);
    return Deadlock(nodes_.front());
  }

  /// Bellman and Ford's: a circle of no more than 0 iterations never comes to rest.
  Status CheckWithRelaxation() {
    const auto count = static_cast<std::int64_t>(nodes_.size());
    const std::int64_t most_rounds = std::min<std::int64_t>(count + 1, 4096);
    std::vector<std::int64_t> earliest(nodes_.size(), 0);
    int moved = -1;
    for (std::int64_t round = 0; round < most_rounds; ++round) {
      moved = -1;
      for (const Edge& edge : edges_) {
        // Longest ways: later by a step counts as 1, by an iteration as less than nothing at all.
        const std::int64_t time = earliest[At(edge.from)] + 1 - edge.iterations * (count + 1);
        if (time <= earliest[At(edge.to)]) continue;
        earliest[At(edge.to)] = time;
        moved = edge.to;
      }
      if (moved < 0) return Status();
    }
    return Deadlock(nodes_[At(moved)]);
  }

  const Step& StepOf(const Node& node) const {
    return schedules_[At(node.rank)].steps[At(node.step)];
  }

  Status Deadlock(const Node& node) const {
    return Reject(schedules_[At(node.rank)], At(node.step),
                  "deadlock: with more chunks it waits in a circle for what comes after it");
  }

  const Orbit orbit_;
  const std::span<const Schedule> schedules_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> node_of_;                    ///< By representative and step.
  std::vector<std::vector<std::vector<int>>> first_signal_;  ///< By representative and mark.
};

}  // namespace

Status CheckSteadyState(Orbit orbit, std::span<const Schedule> schedules) {
  return Loop(orbit, schedules).Check();
}

}  // namespace tidegate::verifier
