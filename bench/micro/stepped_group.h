#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/call_book.h"
#include "collectives/executor/execution.h"
#include "collectives/executor/request.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"
#include "common/check.h"

namespace tidegate::bench {

/// The ranks of a loopback group, which one thread advances in turn: what a collective costs beside
/// the waiting. Float32 of the same shape in every call.
class SteppedGroup {
 public:
  /// `bytes`: of a rank's block; ignored by barriers.
  SteppedGroup(Collective collective, int ranks, std::size_t bytes)
      : group_(ranks, kStageBytes), memory_(static_cast<std::size_t>(ranks)) {
    const char* const name = collective == Collective::kBarrier ? "arrival" : "direct";
    const NamedAlgorithm* const algorithm = FindAlgorithm(collective, name);
    TIDEGATE_CHECK(algorithm != nullptr);
    const PlanChoice choice{
        .choose = [=](const PlanRequest&) -> Result<const Algorithm*> { return &algorithm->build; },
        .placement = Placement::OneNode(ranks)};
    for (int rank = 0; rank < ranks; ++rank) {
      books_.emplace_back(choice, rank, kStageBytes);
      executions_.emplace_back(group_.transport(rank), /*lane=*/0);
      requests_.push_back({RequestFor(collective, rank, ranks, bytes)});
    }
    calls_.resize(requests_.size());
    RunOnce();
    TIDEGATE_CHECK(executions_.front().bytes_from_peers() > 0 || ranks == 1 ||
                   collective == Collective::kBarrier);
  }

  /// One call of every rank, from its request to its end.
  void RunOnce() {
    Prepare();
    for (std::size_t rank = 0; rank < executions_.size(); ++rank)
      TIDEGATE_CHECK(
          executions_[rank].Start(Bind(calls_[rank].front(), requests_[rank].front())).ok());
    running_.assign(executions_.size(), true);
    for (std::size_t left = executions_.size(); left != 0;) {
      for (std::size_t rank = 0; rank < executions_.size(); ++rank) {
        if (!running_[rank]) continue;
        running_[rank] = executions_[rank].Advance().value() == Execution::Outcome::kBlocked;
        if (!running_[rank]) --left;
      }
    }
  }

  /// What RunOnce() does before a rank looks at another.
  void Prepare() {
    ++sequence_;
    for (std::size_t rank = 0; rank < requests_.size(); ++rank) {
      const int ranks = static_cast<int>(requests_.size());
      TIDEGATE_CHECK(CheckRequest(requests_[rank].front(), static_cast<int>(rank), ranks).ok());
      calls_[rank].clear();
      TIDEGATE_CHECK(books_[rank].Make(requests_[rank], sequence_, &calls_[rank]).ok());
    }
  }

 private:
  static constexpr std::size_t kStageBytes = std::size_t{2} << 20;

  CollectiveRequest RequestFor(Collective collective, int rank, int ranks, std::size_t bytes) {
    CollectiveRequest request{.collective = collective, .dtype = DataType::kFloat32};
    if (collective == Collective::kBarrier) return request;
    const auto all = static_cast<std::size_t>(ranks);
    const bool gathers = collective == Collective::kAllGather;
    TIDEGATE_CHECK(gathers || collective == Collective::kReduceScatter);
    std::vector<std::byte>& memory = memory_[static_cast<std::size_t>(rank)];
    memory.resize((all + 1) * bytes);
    Blocks blocks;
    for (std::size_t i = 0; i < all; ++i) blocks.push_back({memory.data() + i * bytes, bytes});
    const Block own = {memory.data() + all * bytes, bytes};
    request.reduce_op = gathers ? ReduceOp::kNone : ReduceOp::kSum;
    request.inputs = gathers ? Blocks{own} : blocks;
    request.outputs = gathers ? blocks : Blocks{own};
    return request;
  }

  LoopbackGroup group_;
  std::vector<std::vector<std::byte>> memory_;  ///< By rank.
  std::deque<CallBook> books_;
  std::vector<Execution> executions_;
  std::vector<Requests> requests_;
  std::vector<InlineVector<PreparedCall, 1>> calls_;
  std::vector<bool> running_;  ///< By rank.
  std::uint64_t sequence_ = 0;
};

}  // namespace tidegate::bench
