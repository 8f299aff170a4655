// Flows backwards: every hop in the reverse order of its time, with a reduction where it branched.

#include <map>
#include <set>
#include <unordered_map>

#include "collectives/algorithms/lowering.h"
#include "common/check.h"

namespace tidegate::lowering {
namespace {

/// Runs a flow backwards.
class Collector {
 public:
  Collector(const Flow& flow, std::function<Slice(const BlockRun&)> input,
            std::function<Slice(int)> result, ScheduleBuilder& builder)
      : flow_(flow),
        input_(std::move(input)),
        result_(std::move(result)),
        builder_(builder),
        returns_(ByTime(flow.receives, /*latest_first=*/true)),
        return_groups_(returns_),
        children_(ByTime(flow.sends)) {
    for (std::size_t child = 0; child < children_.size(); ++child) {
      ForEachRun(children_[child]->blocks, [&](const BlockRun& run, int position) {
        for (int i = 0; i < run.count; ++i)
          children_of_[run.first + i * run.stride].push_back(
              {children_[child], child, position + i});
      });
    }
    for (auto& [block, children] : children_of_)
      std::sort(children.begin(), children.end(),
                [](const Child& a, const Child& b) { return a.hop->peer < b.hop->peer; });
    waited_at_.resize(children_.size(), kNever);
    staging_ids_ = StagingIds(returns_, [](const Hop& hop) { return StagesInput(hop, hop.leaf); });
    FindLastUses();
  }

  void Write() {
    for (std::size_t i = 0; i < returns_.size(); ++i) WriteReturn(i);
    builder_.Lag(flow_.times);
    for (const int block : flow_.own) {
      WaitForChildren({block}, returns_.size());
      builder_.Reduce(result_(block), OperandsOf({block}), result_(block), /*partial=*/false);
    }
    if (!flow_.own.empty()) SignalReadAt(-1);
  }

 private:
  struct Child {
    const Hop* hop;
    std::size_t index;  ///< Among children_.
    int position;       ///< Of the block among those of the hop.
  };

  const std::vector<Child>& ChildrenOf(int block) const {
    static const std::vector<Child> none;
    const auto found = children_of_.find(block);
    return found == children_of_.end() ? none : found->second;
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
    for (const BlockRun& run : runs) WaitForChildren(run, i);
    builder_.Staging(StagesInput(hop, hop.leaf));
    const int before = hop.back_before.id >= 0 ? hop.back_before.id : hop.id;
    builder_.Wait(hop.peer, 2 * before + 1, ExtentOf(hop, Buffer::kInput),
                  hop.back_before.is_of_chunk ? 0 : kPreviousInSlot);
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
    builder_.Staging(staging_ids_.contains(hop.id));
    if (return_groups_.IsLast(i))
      builder_.Signal(SentMark(hop), kLongestBlock, 0, return_groups_.Of(i).only_peer);
    builder_.Staging(false);
    if (i + 1 == returns_.size() || returns_[i + 1]->time != hop.time) SignalReadAt(hop.time);
  }

  /// Once for each child in everything that is written at `step`.
  void WaitForChildren(const BlockRun& run, std::size_t step) {
    for (const Child& child : ChildrenOf(run.first)) {
      if (waited_at_[child.index] == step) continue;
      waited_at_[child.index] = step;
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
      Slice stage = OfStage(owner, child.hop->back_slot + child.position, run.count);
      if (StagesInput(*child.hop, child.hop->leaf)) stage.origin = run.first;
      operands.push_back({stage, child.hop->leaf ? child.hop->peer : -1});
    }
    if (!has_own) operands.push_back(own);
    return operands;
  }

  /// Backwards, what a child sent is read until the earliest time at which one of its blocks was
  /// received; until the very end (-1) if one is owned.
  void FindLastUses() {
    std::unordered_map<int, int> received_at;
    for (const Hop* hop : returns_)
      ForEachBlock(*hop, [&](int block) {
        const auto [entry, is_new] = received_at.try_emplace(block, hop->time);
        if (!is_new) entry->second = std::min(entry->second, hop->time);
      });
    for (const int block : flow_.own) received_at[block] = -1;
    std::map<int, int> last_use_of_id;
    for (const Hop* child : children_) {
      if (child->back_before.id >= 0) makes_room_.insert(child->id);
      int& last_use = last_use_of_id.try_emplace(child->id, flow_.times).first->second;
      ForEachBlock(*child, [&](int block) {
        const auto received = received_at.find(block);
        if (received != received_at.end()) last_use = std::min(last_use, received->second);
      });
    }
    for (const auto& [id, last_use] : last_use_of_id) ids_last_used_at_[last_use].push_back(id);
  }

  /// Tells the children whose last blocks were reduced at `time` that they are read.
  void SignalReadAt(int time) {
    const auto ids = ids_last_used_at_.find(time);
    if (ids == ids_last_used_at_.end()) return;
    for (const int id : ids->second)
      builder_.Signal(2 * id + 1, kLongestBlock, makes_room_.contains(id) ? 0 : -kPreviousInSlot);
  }

  const Flow& flow_;
  const std::function<Slice(const BlockRun&)> input_;
  const std::function<Slice(int)> result_;
  ScheduleBuilder& builder_;
  const std::vector<const Hop*> returns_;
  const HopGroups return_groups_;
  const std::vector<const Hop*> children_;
  std::map<int, std::vector<Child>> children_of_;
  /// The ids of the children whose blocks are last read at a time: what hops of one id have in
  /// common is their signal.
  std::map<int, std::vector<int>> ids_last_used_at_;
  std::set<int> makes_room_;  ///< Ids of children for whose room others wait in the same chunk.
  std::set<int> staging_ids_;
  static constexpr std::size_t kNever = ~std::size_t{0};
  std::vector<std::size_t> waited_at_;  ///< The step that last waited for each child.
};

}  // namespace

void WriteCollect(const Flow& flow, const std::function<Slice(const BlockRun&)>& input,
                  const std::function<Slice(int block)>& result, ScheduleBuilder& builder) {
  Collector(flow, input, result, builder).Write();
}

}  // namespace tidegate::lowering
