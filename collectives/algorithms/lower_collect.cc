// Flows backwards: every hop in the reverse order of its time, with a reduction where it branched.

#include <map>

#include "collectives/algorithms/lowering.h"
#include "common/check.h"

namespace tidegate::lowering {
namespace {

/// Runs a flow backwards.
class Collector {
 public:
  Collector(const Flow& flow, std::function<Slice(const BlockRun&)> input, Slice result,
            ScheduleBuilder& builder)
      : flow_(flow),
        input_(std::move(input)),
        result_(result),
        builder_(builder),
        returns_(ByTime(flow.receives, /*latest_first=*/true)),
        children_(ByTime(flow.sends)) {
    for (const Hop* child : children_) {
      ForEachRun(child->blocks, [&](const BlockRun& run, int position) {
        for (int i = 0; i < run.count; ++i)
          children_of_[run.first + i * run.stride].push_back({child, position + i});
      });
    }
    for (auto& [block, children] : children_of_)
      std::sort(children.begin(), children.end(),
                [](const Child& a, const Child& b) { return a.hop->peer < b.hop->peer; });
    for (const Hop* child : children_) {
      const int last_use = LastUseOf(*child);
      const auto [entry, is_new] = last_use_of_id_.try_emplace(child->id, last_use);
      if (!is_new) entry->second = std::min(entry->second, last_use);
    }
  }

  void Write() {
    for (std::size_t i = 0; i < returns_.size(); ++i) WriteReturn(i);
    builder_.Lag(flow_.times);
    for (const int block : flow_.own) {
      WaitForChildren({block});
      builder_.Reduce(result_, OperandsOf({block}), result_, /*partial=*/false);
    }
    if (!flow_.own.empty()) SignalReadAt(-1);
  }

 private:
  struct Child {
    const Hop* hop;
    int position;  ///< Of the block among those of the hop.
  };

  const std::vector<Child>& ChildrenOf(int block) const {
    static const std::vector<Child> kNone;
    const auto found = children_of_.find(block);
    return found == children_of_.end() ? kNone : found->second;
  }

  /// Whether a slice can continue from one block to the next in every operand.
  bool Continues(int block, int next) const {
    const std::vector<Child>& a = ChildrenOf(block);
    const std::vector<Child>& b = ChildrenOf(next);
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Child& x, const Child& y) {
      return x.hop == y.hop && x.position + 1 == y.position;
    });
  }

  /// `runs` cut into pieces whose blocks have the same children.
  std::vector<BlockRun> Split(const std::vector<BlockRun>& runs) const {
    std::vector<BlockRun> split;
    for (const BlockRun& run : runs) {
      for (int i = 0; i < run.count; ++i) {
        const int block = run.first + i * run.stride;
        if (i > 0 && Continues(block - run.stride, block)) {
          ++split.back().count;
        } else {
          split.push_back({block, 1, run.stride});
        }
      }
    }
    for (BlockRun& run : split)
      if (run.count == 1) run.stride = 1;
    return split;
  }

  /// Backwards, this rank gives to the peer that it received from.
  void WriteReturn(std::size_t i) {
    const Hop& hop = *returns_[i];
    const bool is_wire = hop.medium == Medium::kWire;
    builder_.Lag(flow_.times - hop.time - 1);
    const std::vector<BlockRun> runs = Split(hop.blocks);
    for (const BlockRun& run : runs) WaitForChildren(run);
    waited_.clear();
    builder_.Wait(hop.peer, ReadMark(hop), ExtentOf(hop, Buffer::kInput), kPreviousInSlot);
    ForEachRun(runs, [&](const BlockRun& run, int position) {
      const Slice stage =
          OfStage(is_wire ? hop.peer : flow_.rank, hop.back_slot + position, run.count);
      const Slice input = input_(run);
      if (hop.leaf) {
        TIDEGATE_CHECK(ChildrenOf(run.first).empty());
        builder_.MoveWhile(is_wire ? StepKind::kPut : StepKind::kCopy, stage, input, input);
      } else {
        builder_.Reduce(stage, OperandsOf(run), input, /*partial=*/true);
      }
    });
    if (IsLastOfId(returns_, i)) builder_.Signal(SentMark(hop), kLongestBlock, 0, OnlyPeer(hop));
    if (i + 1 == returns_.size() || returns_[i + 1]->time != hop.time) SignalReadAt(hop.time);
  }

  int OnlyPeer(const Hop& hop) const {
    int peer = hop.peer;
    for (const Hop* other : returns_)
      if (other->id == hop.id && other->time == hop.time && other->peer != peer) peer = kAllPeers;
    return peer;
  }

  void WaitForChildren(const BlockRun& run) {
    for (const Child& child : ChildrenOf(run.first)) {
      if (std::find(waited_.begin(), waited_.end(), child.hop) != waited_.end()) continue;
      waited_.push_back(child.hop);
      builder_.Wait(child.hop->peer, SentMark(*child.hop), ExtentOf(*child.hop, Buffer::kInput));
    }
  }

  std::vector<Operand> OperandsOf(const BlockRun& run) const {
    std::vector<Operand> operands;
    const Operand own{input_(run), flow_.rank};
    bool has_own = false;
    for (const Child& child : ChildrenOf(run.first)) {
      if (!has_own && child.hop->peer > flow_.rank) {
        operands.push_back(own);
        has_own = true;
      }
      const int owner = child.hop->medium == Medium::kNode ? child.hop->peer : flow_.rank;
      operands.push_back({OfStage(owner, child.hop->back_slot + child.position, run.count),
                          child.hop->leaf ? child.hop->peer : -1});
    }
    if (!has_own) operands.push_back(own);
    return operands;
  }

  /// The earliest time at which one of the blocks of `child` was received; -1 for an own block.
  int LastUseOf(const Hop& child) const {
    int earliest = flow_.times;
    const auto contains = [&](const Hop& hop, int block) {
      return std::any_of(hop.blocks.begin(), hop.blocks.end(), [&](const BlockRun& run) {
        const int offset = block - run.first;
        return offset >= 0 && offset % run.stride == 0 && offset / run.stride < run.count;
      });
    };
    for (const int block : flow_.own)
      if (contains(child, block)) return -1;
    for (const BlockRun& run : child.blocks)
      for (int i = 0; i < run.count; ++i)
        for (const Hop* hop : returns_)
          if (hop->time < earliest && contains(*hop, run.first + i * run.stride))
            earliest = hop->time;
    return earliest;
  }

  /// Tells the children whose last blocks were reduced at `time` that they are read.
  void SignalReadAt(int time) {
    for (const auto& [id, last_use] : last_use_of_id_)
      if (last_use == time) builder_.Signal(2 * id + 1, kLongestBlock, -kPreviousInSlot);
  }

  const Flow& flow_;
  const std::function<Slice(const BlockRun&)> input_;
  const Slice result_;
  ScheduleBuilder& builder_;
  const std::vector<const Hop*> returns_;
  const std::vector<const Hop*> children_;
  std::map<int, std::vector<Child>> children_of_;
  std::map<int, int> last_use_of_id_;  ///< What hops of one id have in common is their signal.
  std::vector<const Hop*> waited_;
};

}  // namespace

void WriteCollect(const Flow& flow, const std::function<Slice(const BlockRun&)>& input,
                  Slice result, ScheduleBuilder& builder) {
  Collector(flow, input, result, builder).Write();
}

}  // namespace tidegate::lowering
