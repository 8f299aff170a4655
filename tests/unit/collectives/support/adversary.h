#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/algorithm_table.h"
#include "tests/unit/collectives/support/collective_case.h"

namespace tidegate::testing {

/// Runs cases over a loopback group on one thread that advances a random rank by a random number of
/// steps, while every rank sees its peers' progress late, at random.
class Adversary {
 public:
  /// Whether the inputs of a rank lie in its region in one case, outputs in place with them, or, if
  /// not, in other memory that peers may read.
  using Choice = std::function<bool(std::size_t number, int rank)>;

  /// Sparse: what is not used costs nothing.
  static constexpr std::size_t kRegionBytes = std::size_t{64} << 20;

  Adversary(int ranks, std::uint32_t seed, std::size_t stage_bytes,
            const Placement* placement = nullptr)
      : ranks_(ranks),
        stage_bytes_(stage_bytes),
        placement_(placement),
        random_(seed),
        group_(ranks, stage_bytes, kRegionBytes) {
    for (int rank = 0; rank < ranks; ++rank)
      executions_.emplace_back(group_.transport(rank), /*lane=*/0);
    group_.set_visibility([this](int, int) { return random_() % 4 != 0; });
  }

  /// All ranks run all cases in order, each at its own pace. Empty when every result is right. A
  /// rank overwrites its inputs as soon as a case is done for it, where peers read them.
  std::string Run(const std::vector<CollectiveCase>& cases, const AlgorithmTable& table,
                  const Choice& is_resident = nullptr, const Choice& is_single_copy = nullptr) {
    std::vector<CaseMemory> memory(cases.begin(), cases.end());
    std::vector<std::unique_ptr<std::byte[]>> private_memory;
    std::vector<std::size_t> used(static_cast<std::size_t>(ranks_), 0);
    std::vector<std::vector<bool>> single_copy(cases.size(), std::vector<bool>(used.size(), false));
    for (std::size_t number = 0; number < cases.size(); ++number) {
      for (int rank = 0; rank < ranks_; ++rank) {
        std::size_t& at = used[static_cast<std::size_t>(rank)];
        if (is_resident && is_resident(number, rank)) {
          at += memory[number].Place(rank, group_.transport(rank).RegionOf(rank) + at);
        } else if (is_single_copy && is_single_copy(number, rank)) {
          // Of that length, so that AddressSanitizer sees who reads beyond it.
          private_memory.emplace_back(new std::byte[memory[number].BytesToPlace(rank)]);
          memory[number].Place(rank, private_memory.back().get());
          single_copy[number][static_cast<std::size_t>(rank)] = true;
        }
      }
    }
    std::vector<std::size_t> next(static_cast<std::size_t>(ranks_), 0);
    std::vector<std::unique_ptr<PreparedCall>> running(next.size());
    std::vector<Latest> latest(next.size());
    std::size_t unfinished = next.size();
    for (std::uint64_t round = 0; unfinished > 0; ++round) {
      if (round > 20'000'000) return "no progress: a deadlock;" + DescribeWaits(next);
      const std::size_t rank = random_() % next.size();
      if (next[rank] == cases.size()) continue;
      if (running[rank] == nullptr) {
        const CollectiveRequest request = memory[next[rank]].RequestFor(static_cast<int>(rank));
        const Algorithm* algorithm = table.Choose(request.collective, MessageBytes(request));
        const bool copies_once = single_copy[next[rank]][rank];
        Latest& known = latest[rank];
        if (known.algorithm != algorithm || known.single_copy != copies_once ||
            !HaveSameShape(known.request, request))
          known = {request, algorithm, copies_once,
                   std::make_unique<Schedule>((*algorithm)({.rank = static_cast<int>(rank),
                                                            .ranks = ranks_,
                                                            .root = std::max(request.root, 0),
                                                            .placement = placement_})),
                   ++shapes_};
        running[rank] =
            std::make_unique<PreparedCall>(Prepare(request, *known.schedule, next[rank] + 1,
                                                   stage_bytes_, DataPaths{stage_bytes_, 1 << 30}));
        running[rank]->single_copy = copies_once;
        running[rank]->shape = known.shape;
        const Status started = executions_[rank].Start(Bind(*running[rank]));
        if (!started.ok()) return started.message();
      }
      const Result<Execution::Outcome> outcome =
          executions_[rank].Advance(static_cast<int>(random_() % 4));
      if (!outcome.ok()) return outcome.status().message();
      if (outcome.value() == Execution::Outcome::kBlocked) continue;
      running[rank] = nullptr;
      const auto done = static_cast<int>(rank);
      if (std::string error = memory[next[rank]].ErrorOf(done); !error.empty()) return error;
      memory[next[rank]].Scribble(done);
      if (++next[rank] == cases.size()) --unfinished;
    }
    return "";
  }

  /// Bytes that `rank` has read from its peers' stages, or from their inputs in place of these.
  std::uint64_t BytesReadBy(int rank) const {
    return executions_[static_cast<std::size_t>(rank)].bytes_from_peers();
  }
  /// Bytes that `rank` has read from its peers' inputs where they lie.
  std::uint64_t ResidentBytesOf(int rank) const {
    return executions_[static_cast<std::size_t>(rank)].resident_bytes();
  }
  /// Bytes that `rank` has read from its peers' inputs in their processes.
  std::uint64_t SingleCopyBytesOf(int rank) const {
    return executions_[static_cast<std::size_t>(rank)].single_copy_bytes();
  }
  /// Bytes that `rank` has put into its peers' stages.
  std::uint64_t BytesPutBy(int rank) const {
    return executions_[static_cast<std::size_t>(rank)].bytes_to_peers();
  }

 private:
  /// The latest call of a rank: the next one of its shape runs under its number.
  struct Latest {
    CollectiveRequest request;
    const Algorithm* algorithm = nullptr;
    bool single_copy = false;
    std::unique_ptr<Schedule> schedule;
    std::uint64_t shape = 0;
  };

  /// `next`: by rank, the case that it runs.
  std::string DescribeWaits(const std::vector<std::size_t>& next) const {
    std::string text;
    for (std::size_t rank = 0; rank < next.size(); ++rank) {
      text += " rank " + std::to_string(rank) + " in case " + std::to_string(next[rank]) +
              " after step " + std::to_string(executions_[rank].progress()) + " waits for";
      std::vector<int> peers;
      executions_[rank].AwaitedPeers(&peers);
      for (const int peer : peers) text += " " + std::to_string(peer);
      text += ';';
    }
    return text;
  }

  const int ranks_;
  const std::size_t stage_bytes_;
  const Placement* const placement_;
  std::mt19937 random_;
  LoopbackGroup group_;
  std::vector<Execution> executions_;
  std::uint64_t shapes_ = 0;
};

}  // namespace tidegate::testing
