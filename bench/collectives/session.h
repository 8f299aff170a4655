#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/collectives/bare_exchange.h"
#include "bench/collectives/flag_barrier.h"
#include "bench/collectives/local_store.h"
#include "bench/collectives/options.h"
#include "bench/collectives/problem.h"
#include "collectives/communicator.h"
#include "common/status.h"

namespace tidegate::bench {

/// What the ranks of one group share, mapped before they are forked. Zero-filled memory is valid.
struct SharedArea {
  /// What a rank tells the others of its last loop.
  struct alignas(128) Told {
    double start;
    double finish;
    double p50;
    double p99;
    std::int64_t wrong;
  };
  BarrierWords barrier;
  ExchangeArea exchange;
  Told told[kMostRanks];
  StoreTable store;
};

/// One rank of one group: runs every cell in rounds in which each variant has its turn.
///
/// A loop's time is from the first start to the last finish over the ranks, divided by its calls.
/// Every rank knows all times; rank 0 hands them to `report`.
class Session {
 public:
  using Report = std::function<void(const nlohmann::json& cell)>;

  /// `area` must outlive the session.
  static Result<Session> Make(SharedArea& area, int rank, int ranks, const Options& options,
                              Report report);

  /// All cells of the options. The first failure of a call ends it.
  Status Run();

 private:
  /// One way to do the work of a cell.
  struct Variant {
    std::string name;
    std::function<Status()> call;
    Blocks inputs = {};  ///< What it reads of this rank's.
  };
  struct Percentiles {
    double p50 = 0;
    double p99 = 0;
  };

  Session(SharedArea& area, int rank, int ranks, const Options& options, Report report);

  Status RunCell(Collective collective, std::size_t bytes);
  Status RunIdle();
  /// What tidegate does with `problem`, called `name`, out of place and in place.
  void AddVariants(const std::string& name, const Cell& cell, const Problem& problem,
                   bool from_malloc, std::vector<Variant>* variants);
  std::vector<Variant> VariantsOf(const Cell& cell, const Problem& problem);
  /// An Allocator: the group's shared memory.
  Result<Memory> SharedMemory(std::size_t bytes);
  Result<std::int64_t> CheckBoth(Collective collective, Problem& problem);
  /// What is neither tidegate nor a roofline: nothing but the exchange of bytes.
  Status Bare(const CollectiveRequest& request);
  Status Call(const CollectiveRequest& request);
  Status Barrier();
  /// Calls it once on fresh inputs: wrong elements on all ranks.
  Result<std::int64_t> Check(Problem& problem, bool in_place,
                             Status (Session::*call)(const CollectiveRequest&));
  /// Microseconds of a call.
  Result<double> TimeLoop(const Variant& variant, int calls);
  /// The same where the inputs are new each time, as those of programs are: nobody has them in a
  /// cache but the rank that wrote them.
  Result<double> TimeFresh(const Variant& variant, int calls);
  /// The same on the last rank, which comes to each call when the others have been there for longer
  /// than they can do anything by themselves.
  Result<double> TimeLate(const Variant& variant, int calls);
  /// Of the durations of single calls, in microseconds, on the rank where they are greatest.
  Result<Percentiles> TimeEach(const Variant& variant, int calls);
  SharedArea::Told& own() { return area_.told[rank_]; }
  /// Over the ranks, of what each told before the last barrier.
  double Greatest(double SharedArea::Told::* field) const;
  double Least(double SharedArea::Told::* field) const;

  SharedArea& area_;
  const int rank_;
  const int ranks_;
  const Options options_;
  const Report report_;
  FlagBarrier flags_;
  BareExchange exchange_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace tidegate::bench
