#include "bench/collectives/bare_exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/check.h"
#include "common/clock.h"

namespace tidegate::bench {
namespace {

constexpr std::size_t kLongestChunk = std::size_t{256} << 10;
constexpr std::size_t kLine = 64;
/// Of a block: shorter ones gain nothing by other places of a slot.
constexpr std::size_t kLeastWithPlaces = std::size_t{16} << 10;

}  // namespace

BareExchange::BareExchange(ExchangeArea& area, int rank, int ranks, int ranks_per_cpu)
    : area_(area),
      rank_(rank),
      ranks_(ranks),
      sum_(FindReduceKernel(DataType::kFloat32, ReduceOp::kSum).value()),
      wait_(SteadyClock(), LimitsOfRanks(ranks_per_cpu)),
      sources_(static_cast<std::size_t>(ranks)) {
  TIDEGATE_CHECK(rank >= 0 && rank < ranks && ranks <= kMostRanks);
}

bool BareExchange::Serves(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter;
}

void BareExchange::Run(const CollectiveRequest& request, Stores stores) {
  const bool gathers = request.collective == Collective::kAllGather;
  const std::size_t block = request.inputs.front().bytes;
  const std::size_t chunk =
      std::min(kLongestChunk, gathers ? ExchangeArea::kSlotBytes : PartBytes());
  for (std::size_t from = 0; from < block; from += chunk) {
    ++chunks_;
    for (int other = 0; chunks_ > ExchangeArea::kSlots && other < ranks_; ++other)
      Await(&ExchangeArea::Side::read, other, chunks_ - ExchangeArea::kSlots);
    const std::size_t bytes = std::min(chunk, block - from);
    if (gathers)
      Gather(request, stores, from, bytes);
    else
      Scatter(request, stores, from, bytes);
    Publish(area_.sides[rank_].read);
  }
}

void BareExchange::Gather(const CollectiveRequest& request, Stores stores, std::size_t from,
                          std::size_t bytes) {
  const std::byte* const own = request.inputs.front().data + from;
  const std::size_t place = Place(bytes, ExchangeArea::kSlotBytes);
  std::memcpy(Slot(rank_) + place, own, bytes);
  Publish(area_.sides[rank_].staged);
  const auto output = [&](int rank) {
    return request.outputs[static_cast<std::size_t>(rank)].data + from;
  };
  if (output(rank_) != own) CopyOnce(stores, output(rank_), own, bytes);
  for (int step = 1; step < ranks_; ++step) {
    const int other = (rank_ + step) % ranks_;
    Await(&ExchangeArea::Side::staged, other, chunks_);
    CopyOnce(stores, output(other), Slot(other) + place, bytes);
  }
}

void BareExchange::Scatter(const CollectiveRequest& request, Stores stores, std::size_t from,
                           std::size_t bytes) {
  const std::size_t place = Place(bytes, PartBytes());
  const auto part = [&](int owner, int reader) {
    return Slot(owner) + static_cast<std::size_t>(reader) * PartBytes() + place;
  };
  for (int other = 0; other < ranks_; ++other)
    if (other != rank_)
      std::memcpy(part(rank_, other), request.inputs[static_cast<std::size_t>(other)].data + from,
                  bytes);
  Publish(area_.sides[rank_].staged);
  for (int other = 0; other < ranks_; ++other) {
    const auto index = static_cast<std::size_t>(other);
    Await(&ExchangeArea::Side::staged, other, chunks_);
    sources_[index] = other == rank_ ? request.inputs[index].data + from : part(other, rank_);
  }
  sum_({.dst = request.outputs.front().data + from,
        .sources = sources_.data(),
        .source_count = ranks_,
        .elements = bytes / sizeof(float),
        .factors = nullptr,
        .divisor = ranks_,
        .streaming = stores == Stores::kStreaming});
}

std::size_t BareExchange::PartBytes() const {
  return ExchangeArea::kSlotBytes / static_cast<std::size_t>(ranks_) / kLine * kLine;
}

std::size_t BareExchange::Place(std::size_t bytes, std::size_t room) const {
  const std::size_t long_as = std::bit_ceil(bytes);
  if (bytes < kLeastWithPlaces || long_as > room) return 0;
  return chunks_ / ExchangeArea::kSlots % std::bit_floor(room / long_as) * long_as;
}

std::byte* BareExchange::Slot(int owner) {
  return area_.sides[owner].stage[chunks_ % ExchangeArea::kSlots];
}

void BareExchange::Publish(std::atomic<std::uint64_t>& word) {
  word.store(chunks_, std::memory_order_release);
  area_.bell.Ring();
}

void BareExchange::Await(std::atomic<std::uint64_t> ExchangeArea::Side::* word, int of,
                         std::uint64_t value) {
  if (of == rank_) return;
  const std::atomic<std::uint64_t>& theirs = area_.sides[of].*word;
  const auto reached = [&] { return theirs.load(std::memory_order_acquire) >= value; };
  wait_.Reset();
  AwaitRing(area_.bell, wait_, reached);
}

}  // namespace tidegate::bench
