#include "backend/offload_node.h"

#include <mutex>

#include "backend/offload_engine.h"
#include "collectives/topology/discovery.h"
#include "common/config.h"

namespace tidegate {
namespace {

template <typename T>
T ValueOf(Result<T> result) {
  CheckOffload(result.status());
  return std::move(result).value();
}

struct AllNodes {
  std::mutex mutex;
  std::vector<std::weak_ptr<OffloadNode>> nodes;
};

AllNodes& Nodes() {
  static auto* const nodes = new AllNodes();
  return *nodes;
}

}  // namespace

std::shared_ptr<OffloadNode> OffloadNode::Make(std::shared_ptr<const offload::NodeSegment> segment,
                                               int rank) {
  std::vector<offload::SliceMapping> slices;
  slices.reserve(static_cast<std::size_t>(segment->ranks()));
  for (int peer = 0; peer < segment->ranks(); ++peer)
    slices.push_back(ValueOf(segment->MapSlice(peer, offload::Access::kReadOnly)));
  auto arena = ValueOf(OffloadEngine::OfThisProcess().MakeArena(std::move(segment), rank));
  const std::shared_ptr<OffloadNode> node(new OffloadNode(std::move(arena), std::move(slices)));
  const std::lock_guard lock(Nodes().mutex);
  std::erase_if(Nodes().nodes, [](const auto& other) { return other.expired(); });
  Nodes().nodes.push_back(node);
  return node;
}

std::vector<std::shared_ptr<OffloadNode>> OffloadNode::Alive() {
  const std::lock_guard lock(Nodes().mutex);
  std::vector<std::shared_ptr<OffloadNode>> alive;
  for (const auto& each : Nodes().nodes)
    if (auto node = each.lock()) alive.push_back(std::move(node));
  return alive;
}

ZerosFunction OffloadNode::Zeros() {
  return [node = shared_from_this()](at::IntArrayRef sizes, at::IntArrayRef strides,
                                     at::ScalarType dtype) {
    return ZerosIn(*node->arena_, sizes, strides, dtype);
  };
}

std::size_t OffloadNode::OffsetOf(const at::Tensor& tensor) const {
  return ValueOf(arena_->OffsetOf(static_cast<const std::byte*>(tensor.const_data_ptr())));
}

const std::byte* OffloadNode::At(int rank, std::size_t offset, std::size_t bytes) const {
  return ValueOf(slices_.at(static_cast<std::size_t>(rank)).Read(offset, bytes)).data();
}

OffloadNodeHost::OffloadNodeHost(int ranks)
    // What OffloadNode::Make maps: all slices to read, and the own one to write.
    : segment_(ValueOf(offload::NodeSegment::Create({.ranks = ranks, .mappings = ranks + 1}))),
      host_(ValueOf(offload::SegmentHost::Listen(segment_))) {}

std::shared_ptr<OffloadNode> OffloadNodeHost::Serve(Nanoseconds timeout,
                                                    const offload::StopCheck& stop) {
  CheckOffload(host_.Serve(DeadlineAfter(SteadyClock().Now(), timeout), stop));
  return OffloadNode::Make(segment_, 0);
}

std::shared_ptr<OffloadNode> JoinOffloadNode(const std::string& address, int rank, int ranks,
                                             Nanoseconds timeout, const offload::StopCheck& stop) {
  const TimePoint deadline = DeadlineAfter(SteadyClock().Now(), timeout);
  return OffloadNode::Make(ValueOf(offload::JoinSegment(address, rank, ranks, deadline, stop)),
                           rank);
}

std::string OffloadNodeIdentity() { return ValueOf(NodeIdentity(ValueOf(ProcessConfig()))); }

}  // namespace tidegate
