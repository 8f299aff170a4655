// Flows forwards: every hop in the order of its time.

#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "collectives/algorithms/lowering.h"

namespace tidegate::lowering {
namespace {

class Spreader {
 public:
  Spreader(const Flow& flow, const Frame& frame, ScheduleBuilder& builder)
      : flow_(flow),
        frame_(frame),
        builder_(builder),
        sends_(ByTime(flow.sends)),
        receives_(ByTime(flow.receives)),
        send_groups_(sends_),
        receive_groups_(receives_),
        own_(flow.own.begin(), flow.own.end()) {
    FindRelays();
    FindAwaited();
    staging_ids_ = StagingIds(sends_, [&](const Hop& hop) { return Stages(hop, flow_.rank); });
  }

  void Write() {
    if (sends_.empty() || sends_.back()->time == 0) {
      // A rank that passes nothing on sends first, so that its peers wait less.
      WriteSends(/*awaited=*/false);
      WriteReceives(Medium::kNode);
      WriteReceives(Medium::kWire);
      return;
    }
    // What arrived over the wire may be read from the stage by the rest of the node, whose reading
    // has to be known here before the sender may overwrite it. Doing all such reading of an
    // iteration before all such relaying, and that before all sending, leaves no cycle of ranks
    // that wait for each other. What was sent in the iteration before may still be on the wire:
    // all that does not pass it on comes before the wait for it, so that the wire is never idle.
    WriteReceives(Medium::kNode);
    WriteRelays();
    WriteSends(/*awaited=*/false);
    WriteReceives(Medium::kWire);
    WriteSends(/*awaited=*/true);
  }

 private:
  bool IsOwn(int block) const { return own_.contains(block); }
  bool Stages(const Hop& hop, int sender) const {
    return StagesInput(hop, frame_.origin(sender, hop.blocks.front().first) >= 0);
  }

  Slice Held(const BlockRun& run) const {
    return IsOwn(run.first) ? frame_.source(run) : OfBlocks(Buffer::kOutput, run);
  }

  /// Runs cut so that each is owned as a whole or not at all.
  std::vector<BlockRun> Split(const std::vector<BlockRun>& runs) const {
    std::vector<BlockRun> split;
    for (const BlockRun& run : runs) {
      for (int i = 0; i < run.count; ++i) {
        const int block = run.first + i * run.stride;
        const bool joins = !split.empty() && i > 0 && IsOwn(split.back().first) == IsOwn(block);
        if (joins) {
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

  /// Finds the sends that offer to the node what came over the wire, where it lies.
  void FindRelays() {
    is_relay_.resize(sends_.size());
    relays_of_.resize(receives_.size());
    relays_of_group_.resize(receive_groups_.size());
    std::map<std::pair<int, int>, std::vector<std::size_t>> arrivals;  // By time and slot.
    for (std::size_t i = 0; i < receives_.size(); ++i)
      if (receives_[i]->medium == Medium::kWire)
        arrivals[{receives_[i]->time + receives_[i]->flight, receives_[i]->slot}].push_back(i);
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      const Hop& send = *sends_[i];
      if (send.medium != Medium::kNode) continue;
      const auto found = arrivals.find({send.time, send.slot});
      if (found == arrivals.end()) continue;
      for (const std::size_t receive : found->second) {
        if (receives_[receive]->blocks != send.blocks) continue;
        is_relay_[i] = true;
        relays_of_[receive].push_back(i);
        relays_of_group_[receive_groups_.NumberOf(receive)].push_back(i);
        break;
      }
    }
  }
  bool IsAnyReadByNode(std::size_t receive) const {
    return !relays_of_group_[receive_groups_.NumberOf(receive)].empty();
  }

  void Lag(int lag) { builder_.Lag(frame_.first_lag + lag); }
  void Wait(int peer, Mark mark, Slice extent, int offset = 0) {
    builder_.Wait(peer, frame_.first_mark + mark, extent, offset);
  }
  void SignalSent(const Hop& hop, int peer) {
    builder_.Signal(frame_.first_mark + SentMark(hop), kLongestBlock, 0, peer);
  }
  void SignalRead(const Hop& hop) {
    builder_.Signal(frame_.first_mark + ReadMark(hop), kLongestBlock, -kPreviousInSlot);
  }

  /// Finds the sends that pass on what is received over the wire in the very iteration.
  void FindAwaited() {
    std::unordered_map<int, int> arrived_at;
    for (const Hop* hop : receives_)
      if (hop->medium == Medium::kWire)
        ForEachBlock(*hop, [&](int block) { arrived_at[block] = hop->time + hop->flight; });
    is_awaited_.resize(send_groups_.size());
    for (std::size_t i = 0; i < sends_.size(); ++i)
      ForEachBlock(*sends_[i], [&](int block) {
        const auto arrived = arrived_at.find(block);
        if (arrived != arrived_at.end() && arrived->second == sends_[i]->time)
          is_awaited_[send_groups_.NumberOf(i)] = true;
      });
  }

  void WriteSends(bool awaited) {
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      const Hop& hop = *sends_[i];
      if (is_relay_[i] || is_awaited_[send_groups_.NumberOf(i)] != awaited) continue;
      Lag(hop.time);
      if (hop.medium == Medium::kWire) {
        Wait(hop.peer, ReadMark(hop), ExtentOf(hop, Buffer::kOutput), kPreviousInSlot);
        Move(StepKind::kPut, hop, hop.peer);
        if (send_groups_.IsLast(i)) SignalSent(hop, send_groups_.Of(i).only_peer);
      } else if (hop.peer == send_groups_.Of(i).readers.front()) {
        builder_.Staging(Stages(hop, flow_.rank));
        WaitForReaders(i, kPreviousInSlot);
        Move(StepKind::kCopy, hop, flow_.rank);
        builder_.Staging(staging_ids_.contains(hop.id));
        SignalSent(hop, kAllPeers);
        builder_.Staging(false);
      }
    }
  }

  void Move(StepKind kind, const Hop& hop, int owner) {
    ForEachRun(Split(hop.blocks), [&](const BlockRun& run, int position) {
      const Slice stage = OfStage(owner, frame_.first_slot + hop.slot + position, run.count);
      builder_.MoveWhile(kind, stage, Held(run), Held(run));
    });
  }

  /// The hops of a group share what one staging put there.
  void WaitForReaders(std::size_t send, int offset, int guard = 0) {
    const Mark mark = frame_.first_mark + ReadMark(*sends_[send]);
    const std::vector<int>& readers = send_groups_.Of(send).readers;
    if (static_cast<int>(readers.size()) == flow_.ranks - 1) {
      builder_.Wait(kAllPeers, mark, kLongestBlock, offset, guard);
      return;
    }
    for (const int reader : readers) builder_.Wait(reader, mark, kLongestBlock, offset, guard);
  }

  void WriteReceives(Medium medium) {
    if (frame_.copies_own && medium == Medium::kNode) {
      Lag(0);
      for (const int block : flow_.own) builder_.Copy(Output(block), frame_.source({block}));
    }
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      const Hop& hop = *receives_[i];
      if (hop.medium != medium) continue;
      Lag(hop.time + hop.flight);
      Wait(hop.peer, SentMark(hop), ExtentOf(hop, Buffer::kOutput));
      if (receive_groups_.IsLast(i)) OfferArrivals(i);
      const bool is_wire = medium == Medium::kWire;
      ForEachRun(hop.blocks, [&](const BlockRun& run, int position) {
        Slice stage = OfStage(is_wire ? flow_.rank : hop.peer,
                              frame_.first_slot + hop.slot + position, run.count);
        const Slice output = OfBlocks(Buffer::kOutput, run);
        if (Stages(hop, hop.peer)) stage.origin = frame_.origin(hop.peer, run.first);
        builder_.MoveWhile(is_wire ? StepKind::kCopy : StepKind::kGet, output, stage, output);
      });
      if (receive_groups_.IsLast(i) && !IsAnyReadByNode(i)) SignalRead(hop);
    }
  }

  /// Tells the node that what came by the group of `receive` may be read where it lies.
  void OfferArrivals(std::size_t receive) {
    std::set<int> offered;
    for (const std::size_t relay : relays_of_group_[receive_groups_.NumberOf(receive)])
      if (offered.insert(sends_[relay]->id).second) SignalSent(*sends_[relay], kAllPeers);
  }

  void WriteRelays() {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      if (!IsAnyReadByNode(i)) continue;
      const Hop& hop = *receives_[i];
      const std::size_t relay = relays_of_group_[receive_groups_.NumberOf(i)].front();
      Lag(sends_[relay]->time + sends_[relay]->flight);
      const Hop* waited = nullptr;
      for (const std::size_t send : relays_of_[i]) {
        if (waited != nullptr && waited->id == sends_[send]->id) continue;
        waited = sends_[send];
        WaitForReaders(send, 0, -kPreviousInSlot);
      }
      if (receive_groups_.IsLast(i)) SignalRead(hop);
    }
  }

  const Flow& flow_;
  const Frame& frame_;
  ScheduleBuilder& builder_;
  const std::vector<const Hop*> sends_;
  const std::vector<const Hop*> receives_;
  const HopGroups send_groups_;
  const HopGroups receive_groups_;
  const std::unordered_set<int> own_;
  std::set<int> staging_ids_;
  std::vector<bool> is_relay_;                             ///< By send.
  std::vector<bool> is_awaited_;                           ///< By group of sends.
  std::vector<std::vector<std::size_t>> relays_of_;        ///< By receive: sends.
  std::vector<std::vector<std::size_t>> relays_of_group_;  ///< By group of receives: sends.
};

}  // namespace

void WriteSpread(const Flow& flow, const Frame& frame, ScheduleBuilder& builder) {
  Spreader(flow, frame, builder).Write();
}

}  // namespace tidegate::lowering
