#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/collectives/flag_barrier.h"
#include "bench/collectives/roofline.h"
#include "collectives/executor/adaptive_wait.h"
#include "collectives/executor/request.h"
#include "collectives/kernels/reduce.h"
#include "common/ipc/doorbell.h"

namespace tidegate::bench {

/// The shared part of an exchange. Zero-filled memory is valid; pages that are not used cost
/// nothing.
struct ExchangeArea {
  static constexpr std::size_t kSlotBytes = std::size_t{512} << 10;
  static constexpr int kSlots = 4;

  struct Side {
    alignas(128) std::atomic<std::uint64_t> staged;  ///< Chunks that lie in the stage, ever.
    alignas(128) std::atomic<std::uint64_t> read;    ///< Chunks of all others that were read, ever.
    alignas(4096) std::byte stage[kSlots][kSlotBytes];
  };
  Side sides[kMostRanks];
  alignas(128) Doorbell bell;
};

/// The least that ranks can do to pass ordinary tensors through shared memory: fill a stage, say so
/// in a word, copy or sum what the others have staged, with the executor's copies, kernels and
/// waits. No call is compared with another, no plan looked up, no failure noticed, nothing counted:
/// what tidegate takes longer is its own, what this takes longer than a roofline is the machine's.
/// One object a rank and thread; all ranks make the same calls.
class BareExchange {
 public:
  /// `area` must outlive the exchange. `ranks_per_cpu`: see LimitsOfRanks.
  BareExchange(ExchangeArea& area, int rank, int ranks, int ranks_per_cpu);

  /// Of the collectives that Run can do.
  static bool Serves(Collective collective);
  /// REQUIRES: Serves(request.collective), equal blocks, fp32 and SUM where it reduces.
  void Run(const CollectiveRequest& request, Stores stores);

 private:
  void Gather(const CollectiveRequest& request, Stores stores, std::size_t from, std::size_t bytes);
  void Scatter(const CollectiveRequest& request, Stores stores, std::size_t from,
               std::size_t bytes);
  std::byte* Slot(int owner);
  /// Where in `room` bytes of its slot a chunk lies: elsewhere each time the slots come round.
  std::size_t Place(std::size_t bytes, std::size_t room) const;
  void Publish(std::atomic<std::uint64_t>& word);
  void Await(std::atomic<std::uint64_t> ExchangeArea::Side::* word, int of, std::uint64_t value);
  /// Of a reduction: bytes of a slot for each reader.
  std::size_t PartBytes() const;

  ExchangeArea& area_;
  const int rank_;
  const int ranks_;
  const ReduceKernel sum_;
  AdaptiveWait wait_;
  std::uint64_t chunks_ = 0;  ///< Of all calls, this one among them.
  std::vector<const std::byte*> sources_;
};

}  // namespace tidegate::bench
