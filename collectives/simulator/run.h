#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "collectives/simulator/fair_share.h"
#include "collectives/simulator/network.h"
#include "collectives/simulator/program.h"
#include "collectives/simulator/simulator.h"

namespace tidegate {

/// One run of a Simulator. For its sources alone.
class SimulationRun {
 public:
  SimulationRun(Network& network, const SimulationInput& input);

  Result<Simulation> Execute();

 private:
  using Op = Program::Op;

  /// A way of a program, as one rank takes it.
  struct Way {
    std::int32_t path = -1;  ///< Local steps and puts.
    std::int32_t peer = -1;  ///< Waits: the representative of the peer.
    std::int32_t puts = -1;  ///< Puts: own list. Waits: the peer's list of puts to here, or -1.
    double latency_s = 0;    ///< Waits: from the peer to here.
  };
  /// A signal: this rank has reached `chunk`.
  struct Post {
    double time;
    std::int32_t chunk;
    std::uint32_t puts_before;  ///< Puts that the rank had issued.
  };
  /// Puts of a rank to one other, in order.
  struct PutLog {
    std::vector<std::uint32_t> number;  ///< Among all of the rank's.
    std::vector<double> arrived;        ///< Of those that have left.
  };
  struct Put {
    std::int32_t way;
    std::uint64_t bytes;
  };
  enum class State : std::uint8_t { kReady, kWaiting, kBusy, kDone };
  struct Rank {
    const Program* program = nullptr;
    State state = State::kReady;
    bool is_delayed = false;  ///< By jitter, before the step at the cursor.
    std::int64_t chunks = 0;
    std::int64_t iteration = 0;
    std::int64_t iterations = 0;
    std::vector<std::int32_t> gathered;    ///< Ops of the iteration, where they were collected,
    std::span<const std::int32_t> active;  ///< or where they stand; their order is the program's.
    bool scans = false;                    ///< All ops are looked at instead.
    std::size_t cursor = 0;
    std::int32_t wait_cursor = 0;  ///< Of a wait for all: peers below it are there.
    Way waits_on;                  ///< While waiting, with what follows.
    std::int32_t wait_mark = 0;
    std::int64_t wait_target = 0;
    std::uint32_t draws = 0;  ///< Of random numbers.
    std::uint32_t puts_issued = 0;
    bool is_sending = false;
    std::vector<Way> ways;
    std::vector<std::vector<Post>> posts;  ///< By mark.
    std::vector<PutLog> puts;
    std::deque<Put> queue;              ///< Not yet started.
    std::vector<std::int32_t> waiters;  ///< Ranks whose wait this one may end.
    double done_at = 0;
  };

  struct Event {
    double time;
    std::uint64_t order;
    enum class Kind : std::uint8_t { kRun, kFlow } kind;
    std::int32_t id;
    std::uint32_t version;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct Flow {
    double left = 0;
    double since = 0;
    double rate = 0;
    std::uint32_t version = 0;
    std::int32_t rank = -1;
    std::int32_t way = -1;  ///< Of the put; -1: a local step.
  };

  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  Status Prepare();
  Status CheckInput() const;
  Status CheckTranslates() const;
  void Resolve(int rank);
  void Loop();
  void Handle(const Event& event);
  void UpdateRates();
  void RunRank(int id);
  bool NextIteration(Rank& rank);
  static const Op& CurrentOp(const Rank& rank);
  static std::int64_t ChunkOf(const Rank& rank, const Op& op);
  bool RunOp(int id, const Op& op);
  bool RunLocal(int id, const Op& op, std::uint64_t bytes);
  void FinishLocal(int id);
  void PutResult(int id, const Op& op, std::uint64_t bytes);
  void Signal(int id, const Op& op, std::int64_t chunk);
  bool Wait(int id, const Op& op, std::int64_t chunk);
  bool WaitFor(int id, const Way& way, std::int32_t mark, std::int64_t target);
  double ArrivalOf(const Way& way, std::int32_t mark, std::int64_t target, int to) const;
  Way WayFrom(int rank, int distance);
  void LookAgain(int id);
  void Issue(int id, std::int32_t way, std::uint64_t bytes);
  void StartNextPut(int id);
  void FinishPut(int id, std::int32_t way, double at);
  void StartFlow(int id, std::int32_t way, std::int32_t path, double bytes);
  void Account(std::int32_t path, double bytes);
  void Push(double time, Event::Kind kind, std::int32_t id, std::uint32_t version = 0);
  double Lateness(std::uint64_t what, std::uint64_t which) const;
  Status Deadlock() const;
  Simulation Report() const;

  Network& network_;
  const SimulationInput& input_;
  const int ranks_;   ///< Of the machine.
  const int actors_;  ///< Those that are simulated.
  FairShare fair_share_;
  std::vector<Program> programs_;
  std::vector<std::int32_t> program_of_;
  std::vector<Rank> rank_;
  std::vector<Flow> flows_;
  std::vector<Event> heap_;
  std::vector<int> changed_;
  std::vector<double> path_bytes_;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t pushed_ = 0;
  double now_ = 0;
  int running_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t events_ = 0;
};

}  // namespace tidegate
