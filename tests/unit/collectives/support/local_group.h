#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/communicator_impl.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/algorithm_table.h"

namespace tidegate::testing {

/// The communicators of all ranks of one group, in one process.
class LocalGroup {
 public:
  explicit LocalGroup(int ranks, Nanoseconds timeout = std::chrono::seconds(60),
                      const AlgorithmTable& table = AlgorithmTable::Default(),
                      Nanoseconds shutdown_timeout = std::chrono::milliseconds(100))
      : group_(std::make_shared<LoopbackGroup>(ranks, kStageBytes)),
        doorbell_(std::make_shared<Doorbell>()) {
    group_->set_wake([doorbell = doorbell_] { doorbell->Ring(); });
    for (int rank = 0; rank < ranks; ++rank) {
      CommunicatorOptions options;
      options.group_name = "test";
      options.rank = rank;
      options.ranks = ranks;
      options.timeout = timeout;
      options.config.stage_bytes = kStageBytes;
      options.config.shutdown_timeout = shutdown_timeout;
      ranks_.push_back(CommunicatorImpl::Make(
          std::move(options),
          Membership{[this, rank, plans = table.ForGroup(ranks)](
                         TimePoint, const std::atomic<bool>&) -> Result<Attachment> {
            return Attachment{
                .transport = {group_, &group_->transport(rank)},
                .doorbell = doorbell_,
                .max_sleep = [] { return Nanoseconds(std::chrono::milliseconds(100)); },
                .ranks_per_cpu = [] { return 2; },
                .plans = plans};
          }}));
    }
  }

  Communicator& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  /// What the communicator of `rank` is attached to.
  MemoryTransport& transport(int rank) { return group_->transport(rank); }

  /// Runs `body` for every rank on a thread of its own.
  void RunAll(const std::function<void(int rank, Communicator& communicator)>& body) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      threads.emplace_back([&, rank] { body(static_cast<int>(rank), *ranks_[rank]); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static constexpr std::size_t kStageBytes = 16384;
  std::shared_ptr<LoopbackGroup> group_;
  std::shared_ptr<Doorbell> doorbell_;
  std::vector<std::shared_ptr<CommunicatorImpl>> ranks_;
};

inline CollectiveRequest Barrier() { return {.collective = Collective::kBarrier}; }

inline Block BlockOf(std::vector<std::int32_t>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(std::int32_t)};
}

/// all_reduce(SUM) of `values` in place.
inline CollectiveRequest SumOf(std::vector<std::int32_t>& values) {
  return {.collective = Collective::kAllReduce,
          .dtype = DataType::kInt32,
          .reduce_op = ReduceOp::kSum,
          .inputs = {BlockOf(values)},
          .outputs = {BlockOf(values)}};
}

}  // namespace tidegate::testing
