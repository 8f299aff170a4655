#include "bench/collectives/session.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <optional>
#include <thread>
#include <utility>

#include "collectives/calibration/data_paths.h"
#include "collectives/requests.h"
#include "collectives/streaming.h"
#include "common/config.h"
#include "common/machine/machine.h"

namespace tidegate::bench {
namespace {

constexpr char kGroup[] = "bench";
/// Single calls are timed up to here: above, a loop says the same.
constexpr std::size_t kMostLatencyBytes = 64 << 10;
constexpr int kLatencyCalls = 500;
/// As tidegate's by default, for the bare exchange.
constexpr std::size_t kStreamBytes = DataPaths{}.stream_bytes;
/// How much later than the others the late rank comes: so long and the time of a slow copy.
constexpr Nanoseconds kLeastLateness = std::chrono::microseconds(100);
constexpr std::size_t kBytesPerNanosecond = 1;
constexpr Nanoseconds kIdle = std::chrono::seconds(1);

int CallsOf(std::size_t bytes) {
  if (bytes <= 64 << 10) return 200;
  if (bytes <= 2 << 20) return 61;
  if (bytes <= 32 << 20) return 3;
  return 1;
}

double Microseconds(TimePoint when) {
  return std::chrono::duration<double, std::micro>(when.time_since_epoch()).count();
}

double ProcessSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// By nearest rank; `ordered` ascends.
double Percentile(const std::vector<double>& ordered, std::size_t share) {
  const std::size_t rank = (ordered.size() * share + 99) / 100;
  return ordered[std::min(std::max(rank, std::size_t{1}), ordered.size()) - 1];
}

int RanksPerCpu(int ranks) { return (ranks + UsableCpus() - 1) / UsableCpus(); }

}  // namespace

Result<Session> Session::Make(SharedArea& area, int rank, int ranks, const Options& options,
                              Report report) {
  Session session(area, rank, ranks, options, std::move(report));
  Result<Config> config = ProcessConfig();
  TIDEGATE_RETURN_IF_ERROR(config.status());
  CommunicatorOptions group;
  group.group_name = kGroup;
  group.rank = rank;
  group.ranks = ranks;
  group.timeout = std::chrono::minutes(2);
  group.config = std::move(config).value();
  group.bootstrap = std::make_unique<LocalStore>(area.store, kGroup);
  Result<std::shared_ptr<Communicator>> made = Communicator::Create(std::move(group));
  TIDEGATE_RETURN_IF_ERROR(made.status());
  session.communicator_ = std::move(made).value();
  return session;
}

Session::Session(SharedArea& area, int rank, int ranks, const Options& options, Report report)
    : area_(area),
      rank_(rank),
      ranks_(ranks),
      options_(options),
      report_(std::move(report)),
      flags_(area.barrier, rank, ranks, RanksPerCpu(ranks)),
      exchange_(area.exchange, rank, ranks, RanksPerCpu(ranks)) {}

Status Session::Run() {
  if (options_.idle) {
    TIDEGATE_RETURN_IF_ERROR(RunIdle());
  } else {
    for (const Collective collective : options_.collectives) {
      const bool is_barrier = collective == Collective::kBarrier;
      for (const std::size_t bytes : is_barrier ? std::vector<std::size_t>{0} : options_.sizes)
        TIDEGATE_RETURN_IF_ERROR(RunCell(collective, bytes));
    }
  }
  flags_.Wait();
  communicator_->Shutdown();
  return {};
}

Status Session::RunCell(Collective collective, std::size_t bytes) {
  const Cell cell{collective, ranks_, CellBytes(collective, ranks_, bytes)};
  Result<Problem> made = Problem::Make(cell, rank_, OrdinaryMemory);
  TIDEGATE_RETURN_IF_ERROR(made.status());
  Problem& problem = made.value();
  Result<std::int64_t> checked = CheckBoth(collective, problem);
  TIDEGATE_RETURN_IF_ERROR(checked.status());
  std::int64_t wrong = checked.value();
  std::optional<Problem> resident;
  if (options_.resident) {
    Result<Problem> shared =
        Problem::Make(cell, rank_, [this](std::size_t size) { return SharedMemory(size); });
    TIDEGATE_RETURN_IF_ERROR(shared.status());
    resident.emplace(std::move(shared).value());
    checked = CheckBoth(collective, *resident);
    TIDEGATE_RETURN_IF_ERROR(checked.status());
    wrong += checked.value();
  }

  const int calls = options_.calls > 0 ? options_.calls : CallsOf(cell.bytes);
  const bool times_each = cell.bytes <= kMostLatencyBytes && !options_.fresh && !options_.late;
  std::vector<Variant> variants = VariantsOf(cell, problem);
  if (resident) AddVariants("resident", cell, *resident, false, &variants);
  nlohmann::json loops = nlohmann::json::object();
  nlohmann::json each = nlohmann::json::object();
  for (int round = 0; round < options_.rounds; ++round) {
    for (const Variant& variant : variants) {
      const Result<double> loop = options_.fresh  ? TimeFresh(variant, calls)
                                  : options_.late ? TimeLate(variant, calls)
                                                  : TimeLoop(variant, calls);
      TIDEGATE_RETURN_IF_ERROR(loop.status());
      loops[variant.name].push_back(loop.value());
      if (!times_each) continue;
      const Result<Percentiles> found = TimeEach(variant, std::max(kLatencyCalls, calls));
      TIDEGATE_RETURN_IF_ERROR(found.status());
      each[variant.name]["p50"].push_back(found.value().p50);
      each[variant.name]["p99"].push_back(found.value().p99);
    }
    // None always runs on the caches that the same other left.
    std::ranges::reverse(variants);
  }
  if (rank_ == 0)
    report_({{"collective", NameOf(collective)},
             {"ranks", ranks_},
             {"bytes", cell.bytes},
             {"asked_bytes", collective == Collective::kBarrier ? 0 : bytes},
             {"calls", calls},
             {"wrong", wrong},
             {"loops_us", loops},
             {"each_us", each}});
  return {};
}

void Session::AddVariants(const std::string& name, const Cell& cell, const Problem& problem,
                          bool from_malloc, std::vector<Variant>* variants) {
  for (const bool in_place : {false, true}) {
    if (in_place && !Problem::HasInPlace(cell.collective)) break;
    CollectiveRequest request = problem.Request(in_place);
    request.input_memory = from_malloc ? InputMemory::kMalloc : InputMemory::kAny;
    const Blocks inputs = request.inputs;
    variants->push_back({in_place ? name + "_in_place" : name,
                         [this, request = std::move(request)] { return Call(request); }, inputs});
  }
}

Result<std::int64_t> Session::CheckBoth(Collective collective, Problem& problem) {
  std::int64_t wrong = 0;
  for (const bool in_place : {false, true}) {
    if (in_place && !Problem::HasInPlace(collective)) break;
    const Result<std::int64_t> found = Check(problem, in_place, &Session::Call);
    TIDEGATE_RETURN_IF_ERROR(found.status());
    wrong += found.value();
  }
  if (options_.rivals && BareExchange::Serves(collective)) {
    const Result<std::int64_t> found = Check(problem, false, &Session::Bare);
    TIDEGATE_RETURN_IF_ERROR(found.status());
    wrong += found.value();
  }
  problem.Clear();
  return wrong;
}

Result<Memory> Session::SharedMemory(std::size_t bytes) {
  Result<Memory> memory = communicator_->Allocate(bytes);
  if (!memory.ok()) return memory;
  if (memory.value() == nullptr)
    return Status(StatusCode::kResourceExhausted, "no shared memory for a tensor of " +
                                                      std::to_string(bytes) +
                                                      " bytes; raise TIDEGATE_HEAP_BYTES");
  std::memset(memory.value().get(), 0, bytes);
  return memory;
}

std::vector<Session::Variant> Session::VariantsOf(const Cell& cell, const Problem& problem) {
  std::vector<Variant> variants;
  AddVariants("tidegate", cell, problem, true, &variants);
  if (!options_.rivals) return variants;
  if (Problem::HasRoofline(cell.collective)) {
    for (const auto& [name, stores] :
         {std::pair{"plain", Stores::kPlain}, std::pair{"streaming", Stores::kStreaming}})
      variants.push_back({name,
                          [&problem, stores = stores] {
                            problem.Roofline(stores);
                            return Status();
                          },
                          problem.Request(false).inputs});
  }
  if (BareExchange::Serves(cell.collective))
    variants.push_back({"bare", [this, request = problem.Request(false)] { return Bare(request); },
                        problem.Request(false).inputs});
  if (cell.bytes <= kMostLatencyBytes)
    variants.push_back({"flags", [this] {
                          flags_.Wait();
                          return Status();
                        }});
  return variants;
}

Status Session::RunIdle() {
  // A group that was never used has no thread and no memory.
  TIDEGATE_RETURN_IF_ERROR(Barrier());
  std::vector<double> percent;
  for (int round = 0; round < options_.rounds; ++round) {
    flags_.Wait();
    const double before = ProcessSeconds();
    std::this_thread::sleep_for(kIdle);
    own().finish = ProcessSeconds() - before;
    flags_.Wait();
    double used = 0;
    for (int rank = 0; rank < ranks_; ++rank) used += area_.told[rank].finish;
    percent.push_back(100 * used / std::chrono::duration<double>(kIdle).count());
  }
  if (rank_ == 0)
    report_({{"collective", "idle"}, {"ranks", ranks_}, {"wrong", 0}, {"core_percent", percent}});
  return {};
}

Status Session::Call(const CollectiveRequest& request) {
  const std::shared_ptr<Operation> operation =
      communicator_->Submit({request}, {.async = options_.async});
  return operation->Wait(Nanoseconds(0));
}

Status Session::Bare(const CollectiveRequest& request) {
  const bool streams = WritesPastCaches(request, ranks_, false, kStreamBytes);
  exchange_.Run(request, streams ? Stores::kStreaming : Stores::kPlain);
  return {};
}

Status Session::Barrier() { return Call({.collective = Collective::kBarrier}); }

Result<std::int64_t> Session::Check(Problem& problem, bool in_place,
                                    Status (Session::*call)(const CollectiveRequest&)) {
  problem.Fill(in_place);
  // The buffers of the others are theirs alone, but what a call leaves undone must not be hidden
  // by a rank that is late.
  flags_.Wait();
  TIDEGATE_RETURN_IF_ERROR((this->*call)(problem.Request(in_place)));
  own().wrong = problem.CountWrong(in_place);
  flags_.Wait();
  std::int64_t wrong = 0;
  for (int rank = 0; rank < ranks_; ++rank) wrong += area_.told[rank].wrong;
  flags_.Wait();
  return wrong;
}

Result<double> Session::TimeLoop(const Variant& variant, int calls) {
  flags_.Wait();
  for (int call = 0; call < std::min(options_.warmups, calls); ++call)
    TIDEGATE_RETURN_IF_ERROR(variant.call());
  flags_.Wait();
  const TimePoint start = SteadyClock().Now();
  for (int call = 0; call < calls; ++call) TIDEGATE_RETURN_IF_ERROR(variant.call());
  const TimePoint finish = SteadyClock().Now();
  own().start = Microseconds(start);
  own().finish = Microseconds(finish);
  flags_.Wait();
  return (Greatest(&SharedArea::Told::finish) - Least(&SharedArea::Told::start)) / calls;
}

Result<double> Session::TimeFresh(const Variant& variant, int calls) {
  std::chrono::duration<double, std::micro> taken{};
  for (int call = -std::min(options_.warmups, calls); call < calls; ++call) {
    for (const Block& block : variant.inputs) std::memset(block.data, 0, block.bytes);
    flags_.Wait();
    const TimePoint start = SteadyClock().Now();
    TIDEGATE_RETURN_IF_ERROR(variant.call());
    if (call >= 0) taken += SteadyClock().Now() - start;
  }
  own().finish = taken.count();
  flags_.Wait();
  return Greatest(&SharedArea::Told::finish) / calls;
}

Result<double> Session::TimeLate(const Variant& variant, int calls) {
  const bool is_late = rank_ == ranks_ - 1;
  const std::size_t bytes = TotalBytes(variant.inputs);
  const Nanoseconds lateness =
      kLeastLateness + Nanoseconds(static_cast<std::int64_t>(bytes / kBytesPerNanosecond));
  std::chrono::duration<double, std::micro> taken{};
  for (int call = -std::min(options_.warmups, calls); call < calls; ++call) {
    flags_.Wait();
    const TimePoint met = SteadyClock().Now();
    while (is_late && SteadyClock().Now() < met + lateness) continue;
    const TimePoint start = SteadyClock().Now();
    TIDEGATE_RETURN_IF_ERROR(variant.call());
    if (call >= 0 && is_late) taken += SteadyClock().Now() - start;
  }
  own().finish = taken.count();
  flags_.Wait();
  return Greatest(&SharedArea::Told::finish) / calls;
}

Result<Session::Percentiles> Session::TimeEach(const Variant& variant, int calls) {
  std::vector<double> durations;
  durations.reserve(static_cast<std::size_t>(calls));
  flags_.Wait();
  for (int call = 0; call < std::min(options_.warmups, calls); ++call)
    TIDEGATE_RETURN_IF_ERROR(variant.call());
  flags_.Wait();
  TimePoint last = SteadyClock().Now();
  for (int call = 0; call < calls; ++call) {
    TIDEGATE_RETURN_IF_ERROR(variant.call());
    const TimePoint now = SteadyClock().Now();
    durations.push_back(Microseconds(now) - Microseconds(last));
    last = now;
  }
  std::ranges::sort(durations);
  own().p50 = Percentile(durations, 50);
  own().p99 = Percentile(durations, 99);
  flags_.Wait();
  return Percentiles{Greatest(&SharedArea::Told::p50), Greatest(&SharedArea::Told::p99)};
}

double Session::Greatest(double SharedArea::Told::* field) const {
  double greatest = area_.told[0].*field;
  for (int rank = 1; rank < ranks_; ++rank) greatest = std::max(greatest, area_.told[rank].*field);
  return greatest;
}

double Session::Least(double SharedArea::Told::* field) const {
  double least = area_.told[0].*field;
  for (int rank = 1; rank < ranks_; ++rank) least = std::min(least, area_.told[rank].*field);
  return least;
}

}  // namespace tidegate::bench
