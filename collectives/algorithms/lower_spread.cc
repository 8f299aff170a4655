// Flows forwards: every hop in the order of its time.

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
        receives_(ByTime(flow.receives)) {}

  void Write() {
    // What arrived over the wire may be read from the stage by the rest of the node, whose reading
    // has to be known here before the sender may overwrite it. Doing all reading of an iteration
    // before all such relaying, and that before all sending, leaves no cycle of ranks that wait for
    // each other. A rank that passes nothing on sends first, so that its peers wait less.
    const bool forwards = !sends_.empty() && sends_.back()->time > 0;
    if (!forwards) WriteSends();
    WriteReceives();
    if (forwards) {
      WriteRelays();
      WriteSends();
    }
  }

 private:
  bool IsOwn(int block) const {
    return std::find(flow_.own.begin(), flow_.own.end(), block) != flow_.own.end();
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

  /// Whether what `send` offers to the node is what came over the wire, where it lies.
  const Hop* ArrivalFor(const Hop& send) const {
    if (send.medium != Medium::kNode) return nullptr;
    for (const Hop* receive : receives_)
      if (receive->medium == Medium::kWire && receive->slot == send.slot &&
          receive->time + 1 == send.time && receive->blocks == send.blocks)
        return receive;
    return nullptr;
  }
  bool IsReadByNode(const Hop& receive) const {
    return std::any_of(sends_.begin(), sends_.end(),
                       [&](const Hop* send) { return ArrivalFor(*send) == &receive; });
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

  void WriteSends() {
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      const Hop& hop = *sends_[i];
      if (ArrivalFor(hop) != nullptr) continue;
      Lag(hop.time);
      if (hop.medium == Medium::kWire) {
        Wait(hop.peer, ReadMark(hop), ExtentOf(hop, Buffer::kOutput), kPreviousInSlot);
        Move(StepKind::kPut, hop, hop.peer);
        if (IsLastOfId(sends_, i)) SignalSent(hop, OnlyPeer(hop));
      } else if (IsFirstReader(i)) {
        WaitForReaders(hop, kPreviousInSlot);
        Move(StepKind::kCopy, hop, flow_.rank);
        SignalSent(hop, kAllPeers);
      }
    }
  }

  void Move(StepKind kind, const Hop& hop, int owner) {
    ForEachRun(Split(hop.blocks), [&](const BlockRun& run, int position) {
      const Slice stage = OfStage(owner, frame_.first_slot + hop.slot + position, run.count);
      builder_.MoveWhile(kind, stage, Held(run), Held(run));
    });
  }

  /// Of the hops that share what one staging put there.
  std::vector<int> ReadersOf(const Hop& hop) const {
    std::vector<int> readers;
    for (const Hop* other : sends_)
      if (other->medium == Medium::kNode && other->id == hop.id && other->time == hop.time &&
          std::find(readers.begin(), readers.end(), other->peer) == readers.end())
        readers.push_back(other->peer);
    return readers;
  }
  bool IsFirstReader(std::size_t i) const {
    return ReadersOf(*sends_[i]).front() == sends_[i]->peer;
  }

  int OnlyPeer(const Hop& hop) const {
    int peer = hop.peer;
    for (const Hop* other : sends_)
      if (other->id == hop.id && other->time == hop.time && other->peer != peer) peer = kAllPeers;
    return peer;
  }

  void WaitForReaders(const Hop& hop, int offset, int guard = 0) {
    const std::vector<int> readers = ReadersOf(hop);
    const bool all = static_cast<int>(readers.size()) == flow_.ranks - 1;
    for (const int reader : all ? std::vector<int>{kAllPeers} : readers)
      builder_.Wait(reader, frame_.first_mark + ReadMark(hop), kLongestBlock, offset, guard);
  }

  void WriteReceives() {
    if (frame_.copies_own) {
      Lag(1);
      for (const int block : flow_.own) builder_.Copy(Output(block), frame_.source({block}));
    }
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      const Hop& hop = *receives_[i];
      Lag(hop.time + 1);
      Wait(hop.peer, SentMark(hop), ExtentOf(hop, Buffer::kOutput));
      if (IsLastOfId(receives_, i)) OfferArrivals(hop);
      const bool is_wire = hop.medium == Medium::kWire;
      ForEachRun(hop.blocks, [&](const BlockRun& run, int position) {
        const Slice stage = OfStage(is_wire ? flow_.rank : hop.peer,
                                    frame_.first_slot + hop.slot + position, run.count);
        const Slice output = OfBlocks(Buffer::kOutput, run);
        builder_.MoveWhile(is_wire ? StepKind::kCopy : StepKind::kGet, output, stage, output);
      });
      if (IsLastOfId(receives_, i) && !IsAnyReadByNode(hop)) SignalRead(hop);
    }
  }

  /// Tells the node that what came by hops of this id may be read where it lies.
  void OfferArrivals(const Hop& hop) {
    std::vector<int> offered;
    for (const Hop* send : sends_) {
      const Hop* arrival = ArrivalFor(*send);
      if (arrival == nullptr || arrival->id != hop.id || arrival->time != hop.time) continue;
      if (std::find(offered.begin(), offered.end(), send->id) != offered.end()) continue;
      offered.push_back(send->id);
      SignalSent(*send, kAllPeers);
    }
  }

  bool IsAnyReadByNode(const Hop& hop) const {
    return std::any_of(receives_.begin(), receives_.end(), [&](const Hop* other) {
      return other->id == hop.id && other->time == hop.time && IsReadByNode(*other);
    });
  }

  void WriteRelays() {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      const Hop& hop = *receives_[i];
      if (!IsAnyReadByNode(hop)) continue;
      Lag(hop.time + 2);
      const Hop* waited = nullptr;
      for (const Hop* send : sends_) {
        if (ArrivalFor(*send) != &hop || (waited != nullptr && waited->id == send->id)) continue;
        waited = send;
        WaitForReaders(*send, 0, -kPreviousInSlot);
      }
      if (IsLastOfId(receives_, i)) SignalRead(hop);
    }
  }

  const Flow& flow_;
  const Frame& frame_;
  ScheduleBuilder& builder_;
  const std::vector<const Hop*> sends_;
  const std::vector<const Hop*> receives_;
};

}  // namespace

void WriteSpread(const Flow& flow, const Frame& frame, ScheduleBuilder& builder) {
  Spreader(flow, frame, builder).Write();
}

}  // namespace tidegate::lowering
