// What comes before and after the events of a run: programs, the ways they take, the report.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "collectives/simulator/run.h"

namespace tidegate {
namespace {

constexpr std::uint64_t kChunkAlignment = 64;  // The executor's.

std::size_t At(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

SimulationRun::SimulationRun(Network& network, const SimulationInput& input)
    : network_(network),
      input_(input),
      ranks_(network.topology().ranks()),
      actors_(network.representatives()),
      fair_share_(network.Capacities()),
      rank_(At(actors_)) {}

Result<Simulation> SimulationRun::Execute() {
  TIDEGATE_RETURN_IF_ERROR(CheckInput());
  TIDEGATE_RETURN_IF_ERROR(Prepare());
  Loop();
  if (running_ > 0) return Deadlock();
  return Report();
}

Status SimulationRun::CheckInput() const {
  const auto bad = [](std::string what) {
    return Status(StatusCode::kInvalidArgument, std::move(what));
  };
  if (!input_.schedule) return bad("a simulation without schedules");
  if (!(input_.jitter_s >= 0 && std::isfinite(input_.jitter_s)))
    return bad("a jitter of " + std::to_string(input_.jitter_s) + " s; it is at least 0");
  if (actors_ != ranks_ && (input_.jitter_s > 0 || !input_.start_s.empty()))
    return bad("jitter and starts by rank make translates differ; simulate every rank (orbit 0)");
  if (!input_.start_s.empty() && input_.start_s.size() != At(ranks_))
    return bad(std::to_string(input_.start_s.size()) + " starts for " + std::to_string(ranks_) +
               " ranks");
  for (const double start : input_.start_s)
    if (!(start >= 0 && std::isfinite(start)))
      return bad("a start at " + std::to_string(start) + " s; it is at least 0");
  return Status();
}

/// That ranks of an orbit do the same, of a sample: first and last translates of some of its ranks.
/// Steps may come in another order, as operands do where ranks wrap around.
Status SimulationRun::CheckTranslates() const {
  if (actors_ == ranks_) return Status();
  const auto differs = [&](int id, int translate) {
    return Status(StatusCode::kInvalidArgument,
                  "rank " + std::to_string(translate) + " does not do what rank " +
                      std::to_string(id) + " does, " + std::to_string(translate - id) +
                      " ranks further on; simulate every rank (orbit 0) or choose another orbit");
  };
  const std::vector<std::uint64_t>& bytes = input_.blocks.bytes;
  for (std::size_t rank = 0; bytes.size() > 1 && rank < bytes.size(); ++rank)
    if (bytes[rank] != bytes[rank % At(actors_)])
      return differs(static_cast<int>(rank) % actors_, static_cast<int>(rank));
  constexpr int kSampled = 8;
  const int sampled = std::min(kSampled, actors_);
  for (int i = 0; i < sampled; ++i) {
    const int id = sampled == 1 ? 0 : i * (actors_ - 1) / (sampled - 1);
    for (const int translate : {id + actors_, id + ranks_ - actors_}) {
      const Result<Program> other = Compile(input_.schedule(translate), input_.blocks);
      if (!other.ok()) return other.status();
      if (!programs_[At(program_of_[At(id)])].IsReordered(other.value()))
        return differs(id, translate);
    }
  }
  return Status();
}

Status SimulationRun::Prepare() {
  std::unordered_multimap<std::uint64_t, std::int32_t> by_hash;
  for (int id = 0; id < actors_; ++id) {
    const Schedule schedule = input_.schedule(id);
    if (schedule.ranks != ranks_ || schedule.rank != id)
      return Status(StatusCode::kInvalidArgument,
                    "asked for the schedule of rank " + std::to_string(id) + " of " +
                        std::to_string(ranks_) + ", got that of " + std::to_string(schedule.rank) +
                        " of " + std::to_string(schedule.ranks));
    Result<Program> compiled = Compile(schedule, input_.blocks);
    if (!compiled.ok()) return compiled.status();
    Program& program = compiled.value();
    const std::uint64_t hash = program.Hash();
    std::int32_t number = -1;
    const auto [begin, end] = by_hash.equal_range(hash);
    for (auto same = begin; same != end && number < 0; ++same)
      if (programs_[At(same->second)].SameAs(program)) number = same->second;
    if (number < 0) {
      number = static_cast<std::int32_t>(programs_.size());
      by_hash.emplace(hash, number);
      programs_.push_back(std::move(program));
      if (programs_[0].sub_slots != programs_.back().sub_slots)
        return Status(StatusCode::kInvalidArgument,
                      "ranks 0 and " + std::to_string(id) + " cut slots into " +
                          std::to_string(programs_[0].sub_slots) + " and " +
                          std::to_string(programs_.back().sub_slots) + " sub-slots");
    }
    program_of_.push_back(number);
  }
  TIDEGATE_RETURN_IF_ERROR(CheckTranslates());
  const auto sub_slots = static_cast<std::uint64_t>(programs_[0].sub_slots);
  const std::uint64_t wished =
      input_.chunk_bytes > 0 ? input_.chunk_bytes : input_.slot_bytes / sub_slots;
  chunk_bytes_ = wished / kChunkAlignment * kChunkAlignment;
  if (chunk_bytes_ == 0)
    return Status(StatusCode::kInvalidArgument,
                  "slots of " + std::to_string(input_.slot_bytes) + " bytes are too small for " +
                      std::to_string(sub_slots) + " sub-slots; they need " +
                      std::to_string(sub_slots * kChunkAlignment));
  for (int id = 0; id < actors_; ++id) Resolve(id);
  network_.Settle();
  running_ = actors_;
  for (int id = 0; id < actors_; ++id)
    Push(input_.start_s.empty() ? 0 : input_.start_s[At(id)], Event::Kind::kRun, id);
  return Status();
}

void SimulationRun::Resolve(int id) {
  Rank& rank = rank_[At(id)];
  const Program& program = programs_[At(program_of_[At(id)])];
  rank.program = &program;
  rank.chunks = static_cast<std::int64_t>((program.longest + chunk_bytes_ - 1) / chunk_bytes_);
  rank.iterations = rank.chunks == 0 ? 0 : (rank.chunks - 1) * program.period + 1 + program.max_lag;
  rank.iteration = -1;
  rank.posts.resize(At(program.marks));
  rank.puts.resize(program.put_list_to.size());
  std::vector<int> sources;
  for (const Program::Way& way : program.ways) {
    Way found;
    switch (way.kind) {
      case Program::Way::Kind::kLocal:
        sources.clear();
        for (const std::int32_t distance : way.peers) sources.push_back((id + distance) % ranks_);
        found.path = network_.Local(id, way.reads, sources);
        break;
      case Program::Way::Kind::kPut:
        found.path = network_.Between(id, (id + way.peers[0]) % ranks_);
        found.puts = program.put_list_to.at(way.peers[0]);
        break;
      case Program::Way::Kind::kWait:
        found = WayFrom(id, way.peers[0]);
        break;
    }
    rank.ways.push_back(found);
  }
}

/// The way of the signals of the rank that is `distance` further on.
SimulationRun::Way SimulationRun::WayFrom(int id, int distance) {
  const int peer = (id + distance) % ranks_;
  Way way{.peer = peer % actors_};
  way.latency_s = network_.path(network_.Between(peer, id)).latency_s;
  const Program& theirs = programs_[At(program_of_[At(way.peer)])];
  const auto puts = theirs.put_list_to.find((ranks_ - distance) % ranks_);
  if (puts != theirs.put_list_to.end()) way.puts = puts->second;
  return way;
}

Status SimulationRun::Deadlock() const {
  for (int id = 0; id < actors_; ++id) {
    const Rank& rank = rank_[At(id)];
    if (rank.state == State::kDone) continue;
    return Status(StatusCode::kInvalidArgument,
                  "the schedules deadlock: rank " + std::to_string(id) + " waits for rank " +
                      std::to_string(rank.waits_on.peer) + " to reach chunk " +
                      std::to_string(rank.wait_target) + " at mark " +
                      std::to_string(rank.wait_mark) + ", which it never does");
  }
  return Status();
}

Simulation SimulationRun::Report() const {
  Simulation report;
  const double translates = static_cast<double>(ranks_) / actors_;
  for (const Rank& rank : rank_) {
    report.rank_seconds.push_back(rank.done_at);
    report.seconds = std::max(report.seconds, rank.done_at);
    const std::uint64_t used = std::min(chunk_bytes_, rank.program->longest);
    const auto slots =
        static_cast<std::uint64_t>(std::min<std::int64_t>(rank.chunks, kChunksInFlight));
    report.peak_stage_bytes =
        std::max(report.peak_stage_bytes,
                 used * slots * static_cast<std::uint64_t>(rank.program->sub_slots));
    report.chunks = std::max(report.chunks, rank.chunks);
  }
  report.chunk_bytes = chunk_bytes_;
  report.link_bytes.assign(At(network_.topology().link_end()), 0);
  for (int path = 0; path < static_cast<int>(path_bytes_.size()); ++path) {
    const double bytes = path_bytes_[At(path)];
    if (bytes == 0) continue;
    const Path& taken = network_.path(path);
    report.tier_bytes[static_cast<std::size_t>(taken.tier)] += bytes * taken.transfers * translates;
    network_.AddLinkBytes(path, bytes, &report.link_bytes);
  }
  network_.SpreadOverOrbits(&report.link_bytes);
  report.steps = steps_;
  report.events = events_;
  return report;
}

}  // namespace tidegate
