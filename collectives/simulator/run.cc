// The events of a run: ranks that go on, transfers that end.

#include "collectives/simulator/run.h"

#include <algorithm>
#include <functional>

#include "common/check.h"

namespace tidegate {
namespace {

/// Events closer than this, relatively, happen at once, in the order in which they were foreseen:
/// rounding must not tear apart what is symmetric, at the cost of a computation of rates each.
constexpr double kAtOnce = 1e-14;

std::size_t At(std::int64_t index) { return static_cast<std::size_t>(index); }

std::uint64_t Mix(std::uint64_t value) {  // the finaliser of splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace

void SimulationRun::Push(double time, Event::Kind kind, std::int32_t id, std::uint32_t version) {
  heap_.push_back({time, pushed_++, kind, id, version});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void SimulationRun::Loop() {
  while (!heap_.empty()) {
    now_ = heap_.front().time;
    const double limit = now_ * (1 + kAtOnce);
    while (!heap_.empty() && heap_.front().time <= limit) {
      while (!heap_.empty() && heap_.front().time <= limit) {
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        const Event event = heap_.back();
        heap_.pop_back();
        Handle(event);
      }
      if (fair_share_.changed()) UpdateRates();
    }
  }
}

void SimulationRun::Handle(const Event& event) {
  if (event.kind == Event::Kind::kRun) {
    ++events_;
    rank_[At(event.id)].state = State::kReady;
    RunRank(event.id);
    return;
  }
  const Flow flow = flows_[At(event.id)];
  if (flow.version != event.version) return;
  ++events_;
  fair_share_.Remove(event.id);
  ++flows_[At(event.id)].version;
  Rank& rank = rank_[At(flow.rank)];
  if (flow.way >= 0) {
    rank.is_sending = false;
    FinishPut(flow.rank, flow.way, now_);
    StartNextPut(flow.rank);
  } else {
    rank.state = State::kReady;
    FinishLocal(flow.rank);
    RunRank(flow.rank);
  }
}

void SimulationRun::UpdateRates() {
  changed_.clear();
  fair_share_.Solve(&changed_);
  for (const int id : changed_) {
    Flow& flow = flows_[At(id)];
    flow.left = std::max(0.0, flow.left - flow.rate * (now_ - flow.since));
    flow.since = now_;
    flow.rate = fair_share_.rate(id);
    ++flow.version;
    Push(now_ + flow.left / flow.rate, Event::Kind::kFlow, id, flow.version);
  }
}

void SimulationRun::RunRank(int id) {
  Rank& rank = rank_[At(id)];
  const std::vector<Op>& ops = rank.program->ops;
  while (true) {
    const std::size_t end = rank.scans ? ops.size() : rank.active.size();
    if (rank.cursor == end) {
      if (NextIteration(rank)) continue;
      rank.state = State::kDone;
      rank.done_at = now_;
      --running_;
      return;
    }
    if (!RunOp(id, CurrentOp(rank))) return;
    ++rank.cursor;
  }
}

const SimulationRun::Op& SimulationRun::CurrentOp(const Rank& rank) {
  return rank.program->ops[rank.scans ? rank.cursor : At(rank.active[rank.cursor])];
}

/// Finds the ops of the next iteration: those of one lag for each chunk under way.
bool SimulationRun::NextIteration(Rank& rank) {
  const Program& program = *rank.program;
  if (rank.iteration + 1 >= rank.iterations) return false;
  const std::int64_t iteration = ++rank.iteration;
  rank.cursor = 0;
  rank.scans = false;
  const std::int64_t behind = iteration - program.max_lag;
  const std::int64_t first = behind <= 0 ? 0 : (behind + program.period - 1) / program.period;
  const std::int64_t last = std::min(rank.chunks - 1, iteration / program.period);
  const auto of_lag = [&](std::int64_t chunk) {
    const std::size_t lag = At(iteration - chunk * program.period);
    const auto begin = At(program.lag_begin[lag]);
    return std::span(program.by_lag).subspan(begin, At(program.lag_begin[lag + 1]) - begin);
  };
  if (first == last) {
    rank.active = of_lag(first);
    return true;
  }
  rank.gathered.clear();
  for (std::int64_t chunk = first; chunk <= last && !rank.scans; ++chunk) {
    const std::span<const std::int32_t> ops = of_lag(chunk);
    rank.gathered.insert(rank.gathered.end(), ops.begin(), ops.end());
    rank.scans = rank.gathered.size() * 8 > program.ops.size();  // Cheaper than to sort them.
  }
  if (!rank.scans) std::ranges::sort(rank.gathered);
  rank.active = rank.gathered;
  return true;
}

/// Whether the op is done, or has nothing to do in this iteration.
bool SimulationRun::RunOp(int id, const Op& op) {
  Rank& rank = rank_[At(id)];
  const Program& program = *rank.program;
  const std::int64_t chunk = ChunkOf(rank, op);
  if (chunk < 0 || chunk >= rank.chunks) return true;
  const Program::Length& length = program.lengths[At(op.length)];
  const std::int64_t last = chunk + op.guard_offset;
  if (last < 0 || static_cast<std::uint64_t>(last) * chunk_bytes_ >= length.longest) return true;
  switch (op.kind) {
    case Program::Kind::kWait:
      if (!Wait(id, op, chunk)) return false;
      break;
    case Program::Kind::kSignal:
      Signal(id, op, chunk);
      break;
    case Program::Kind::kPut: {
      const std::uint64_t bytes = length.BytesOf(chunk, chunk_bytes_);
      if (bytes > 0) Issue(id, op.way, bytes);
      break;
    }
    case Program::Kind::kLocal:
    case Program::Kind::kReducePut:
      return RunLocal(id, op, length.BytesOf(chunk, chunk_bytes_));
  }
  ++steps_;
  return true;
}

std::int64_t SimulationRun::ChunkOf(const Rank& rank, const Op& op) {
  const std::int64_t since = rank.iteration - op.lag;
  const int period = rank.program->period;
  if (period == 1 || since < 0) return since;
  return since % period == 0 ? since / period : -1;
}

bool SimulationRun::RunLocal(int id, const Op& op, std::uint64_t bytes) {
  if (bytes == 0) return true;
  Rank& rank = rank_[At(id)];
  if (input_.jitter_s > 0 && !rank.is_delayed) {
    rank.is_delayed = true;
    rank.state = State::kBusy;
    Push(now_ + Lateness(static_cast<std::uint64_t>(id), ++rank.draws), Event::Kind::kRun, id);
    return false;
  }
  rank.is_delayed = false;
  const std::int32_t path = rank.ways[At(op.way)].path;
  Account(path, static_cast<double>(bytes));
  if (network_.path(path).uses.empty()) {
    PutResult(id, op, bytes);
    ++steps_;
    return true;
  }
  rank.state = State::kBusy;
  StartFlow(id, -1, path, static_cast<double>(bytes));
  return false;
}

/// The step at the cursor has taken its time.
void SimulationRun::FinishLocal(int id) {
  Rank& rank = rank_[At(id)];
  const Op& op = CurrentOp(rank);
  PutResult(id, op, rank.program->lengths[At(op.length)].BytesOf(ChunkOf(rank, op), chunk_bytes_));
  ++rank.cursor;
  ++steps_;
}

void SimulationRun::PutResult(int id, const Op& op, std::uint64_t bytes) {
  if (op.kind == Program::Kind::kReducePut) Issue(id, op.put_way, bytes);
}

void SimulationRun::Signal(int id, const Op& op, std::int64_t chunk) {
  Rank& rank = rank_[At(id)];
  std::vector<Post>& posts = rank.posts[At(op.mark)];
  if (!posts.empty() && posts.back().chunk >= chunk) return;  // Words only grow.
  posts.push_back({now_, static_cast<std::int32_t>(chunk), rank.puts_issued});
  LookAgain(id);
}

bool SimulationRun::Wait(int id, const Op& op, std::int64_t chunk) {
  const std::int64_t target = chunk + op.wait_offset;
  if (target < 0) return true;
  Rank& rank = rank_[At(id)];
  if (op.way >= 0) return WaitFor(id, rank.ways[At(op.way)], op.mark, target);
  for (rank.wait_cursor = std::max(rank.wait_cursor, 1); rank.wait_cursor < ranks_;
       ++rank.wait_cursor)
    if (!WaitFor(id, WayFrom(id, rank.wait_cursor), op.mark, target)) return false;
  rank.wait_cursor = 0;
  return true;
}

bool SimulationRun::WaitFor(int id, const Way& way, std::int32_t mark, std::int64_t target) {
  const double arrival = ArrivalOf(way, mark, target, id);
  if (arrival <= now_ * (1 + kAtOnce)) return true;
  Rank& rank = rank_[At(id)];
  rank.state = State::kWaiting;
  if (arrival != kUnknown) {
    Push(arrival, Event::Kind::kRun, id);
    return false;
  }
  rank.waits_on = way;
  rank.wait_mark = mark;
  rank.wait_target = target;
  rank_[At(way.peer)].waiters.push_back(id);
  return false;
}

/// When rank `to` sees that the peer has reached `target`; kUnknown while that depends on what is
/// yet to happen.
double SimulationRun::ArrivalOf(const Way& way, std::int32_t mark, std::int64_t target,
                                int to) const {
  const Rank& peer = rank_[At(way.peer)];
  if (At(mark) >= peer.posts.size()) return kUnknown;
  const std::vector<Post>& posts = peer.posts[At(mark)];
  if (posts.empty() || posts.back().chunk < target) return kUnknown;
  const auto post = std::ranges::lower_bound(posts, target, {}, &Post::chunk);
  double time = post->time + way.latency_s;
  if (input_.jitter_s > 0)
    time += Lateness(Mix(At(way.peer) * 0x10001U + At(mark)) + At(post->chunk), At(to));
  if (way.puts < 0) return time;
  const PutLog& log = peer.puts[At(way.puts)];
  const auto before = std::ranges::lower_bound(log.number, post->puts_before) - log.number.begin();
  if (before == 0) return time;
  if (At(before) > log.arrived.size()) return kUnknown;
  return std::max(time, log.arrived[At(before) - 1]);
}

/// Something of this rank became known: ends waits for it.
void SimulationRun::LookAgain(int id) {
  std::vector<std::int32_t>& waiters = rank_[At(id)].waiters;
  std::size_t kept = 0;
  for (const std::int32_t waiter : waiters) {
    const Rank& waiting = rank_[At(waiter)];
    const double arrival =
        ArrivalOf(waiting.waits_on, waiting.wait_mark, waiting.wait_target, waiter);
    if (arrival == kUnknown) {
      waiters[kept++] = waiter;
    } else {
      Push(std::max(now_, arrival), Event::Kind::kRun, waiter);
    }
  }
  waiters.resize(kept);
}

void SimulationRun::Issue(int id, std::int32_t way, std::uint64_t bytes) {
  Rank& rank = rank_[At(id)];
  rank.puts[At(rank.ways[At(way)].puts)].number.push_back(rank.puts_issued++);
  rank.queue.push_back({way, bytes});
  if (!rank.is_sending) StartNextPut(id);
}

void SimulationRun::StartNextPut(int id) {
  Rank& rank = rank_[At(id)];
  while (!rank.queue.empty()) {
    const Put put = rank.queue.front();
    rank.queue.pop_front();
    const std::int32_t path = rank.ways[At(put.way)].path;
    Account(path, static_cast<double>(put.bytes));
    if (!network_.path(path).uses.empty()) {
      rank.is_sending = true;
      StartFlow(id, put.way, path, static_cast<double>(put.bytes));
      return;
    }
    FinishPut(id, put.way, now_);
  }
}

/// The last byte left at `at`.
void SimulationRun::FinishPut(int id, std::int32_t way, double at) {
  Rank& rank = rank_[At(id)];
  PutLog& log = rank.puts[At(rank.ways[At(way)].puts)];
  double arrival = at + network_.path(rank.ways[At(way)].path).latency_s;
  if (input_.jitter_s > 0) {
    arrival += Lateness(~static_cast<std::uint64_t>(id), log.number[log.arrived.size()]);
    if (!log.arrived.empty()) arrival = std::max(arrival, log.arrived.back());  // In order.
  }
  log.arrived.push_back(arrival);
  LookAgain(id);
}

void SimulationRun::StartFlow(int id, std::int32_t way, std::int32_t path, double bytes) {
  const int number = fair_share_.Add(network_.path(path).BindingUses());
  if (At(number) >= flows_.size()) flows_.resize(At(number) + 1);
  Flow& flow = flows_[At(number)];
  flow.left = bytes;
  flow.since = now_;
  flow.rate = 0;
  ++flow.version;
  flow.rank = id;
  flow.way = way;
  ++events_;
}

void SimulationRun::Account(std::int32_t path, double bytes) {
  if (path_bytes_.size() <= At(path)) path_bytes_.resize(At(network_.paths()), 0);
  path_bytes_[At(path)] += bytes;
}

double SimulationRun::Lateness(std::uint64_t what, std::uint64_t which) const {
  const std::uint64_t draw = Mix(Mix(Mix(input_.seed + 1) ^ what) + which * 0x9e3779b97f4a7c15U);
  return input_.jitter_s * (static_cast<double>(draw >> 11) * 0x1p-53);
}

}  // namespace tidegate
