#include "collectives/transport/loopback/loopback.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/ipc/memfd.h"

namespace tidegate {

class LoopbackGroup::RankTransport final : public MemoryTransport {
 public:
  RankTransport(LoopbackGroup& group, SegmentLayout layout, int rank)
      : MemoryTransport(group.memory_.data(), layout, rank), group_(group) {
    PublishRecord({.host = "loopback"}, probe_);
    for (int peer = 0; peer < layout.ranks; ++peer)
      if (peer != rank) PublishReads(peer);
  }

  static void Format(std::byte* base, const SegmentLayout& layout) { Initialise(base, layout); }

  bool HasArrived(int lane, int peer, std::uint64_t index) override {
    return MemoryTransport::HasArrived(lane, peer, index) && Sees(peer);
  }
  bool HasReached(int lane, int peer, Mark mark, std::uint64_t word) override {
    return MemoryTransport::HasReached(lane, peer, mark, word) && Sees(peer);
  }
  Status CommitStage(int /*lane*/, std::size_t offset, std::size_t bytes) override {
    if (group_.on_commit_) group_.on_commit_(rank(), offset, bytes);
    return Status();
  }
  bool ReadsMemoryOf(int) override { return true; }
  bool IsReadable(const std::byte* data, std::size_t bytes) override {
    return !group_.is_readable_ || group_.is_readable_(data, bytes);
  }
  Status ReadMemory(int peer, std::uint64_t address, std::byte* to, std::size_t bytes) override {
    if (group_.trouble_ != nullptr)
      if (Status trouble = group_.trouble_(peer); !trouble.ok()) return trouble;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): another rank of this process gave it
    std::memcpy(to, reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(address)),
                bytes);
    return Status();
  }
  Status CommitPair(int, bool) override { return Status(); }
  void Wake() override {
    if (group_.wake_) group_.wake_();
  }

 private:
  bool Sees(int peer) { return !group_.visible_ || group_.visible_(rank(), peer); }
  LoopbackGroup& group_;
  const std::uint64_t probe_ = 0;
};

LoopbackGroup::LoopbackGroup(int ranks, std::size_t stage_bytes, std::size_t region_bytes) {
  const SegmentLayout layout(ranks, stage_bytes, region_bytes);
  // A memfd, as for processes: pages that no test touches are never allocated.
  Result<UniqueFd> file = CreateMemfd("tidegate-loopback", layout.total_bytes());
  TIDEGATE_CHECK(file.ok());
  Result<Mapping> mapping = Mapping::Map(file.value().get(), layout.total_bytes());
  TIDEGATE_CHECK(mapping.ok());
  memory_ = std::move(mapping).value();
  RankTransport::Format(memory_.data(), layout);
  for (int rank = 0; rank < ranks; ++rank)
    transports_.push_back(std::make_unique<RankTransport>(*this, layout, rank));
}

LoopbackGroup::~LoopbackGroup() = default;

MemoryTransport& LoopbackGroup::transport(int rank) {
  return *transports_.at(static_cast<std::size_t>(rank));
}

void LoopbackGroup::set_wake(std::function<void()> wake) { wake_ = std::move(wake); }

void LoopbackGroup::set_is_readable(IsReadable is_readable) {
  is_readable_ = std::move(is_readable);
}

void LoopbackGroup::set_trouble(Trouble trouble) { trouble_ = std::move(trouble); }

void LoopbackGroup::set_on_commit(OnCommit on_commit) { on_commit_ = std::move(on_commit); }

void LoopbackGroup::set_visibility(Visibility visible) { visible_ = std::move(visible); }

}  // namespace tidegate
