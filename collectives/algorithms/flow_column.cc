// Column first: for each local index, one exchange between the nodes; every rank drives the wire
// with its own shard, and what arrives in a rank's stage is read there by the rest of its node
// while the next is on the wire.
//
// Cost: the exchange between n nodes, of shards s = S/p in g columns at once: (n-1)/n S beta2 of
// the node's link, the lower bound, for every placement; beside it, pipelined, (p-1)/p S beta1
// inside. Extra memory: n shards' chunks forwards, g n backwards, twice. Order of reduction,
// backwards: a node's ranks in one pass, in their order, with what came over the wire among them;
// one rounding a node, and with chains of readers one for each rank of a chain. Source:
// hierarchical copy-engine all-gather of NCCL 2.30; PCCL (arXiv 2504.18658).
//
// Nodes of different sizes: column c exists where a node has more than c ranks; on a smaller node
// its carrier is local rank c modulo the node's size.

#include <algorithm>
#include <utility>

#include "collectives/algorithms/flows.h"

namespace tidegate {
namespace {

class Column {
 public:
  Column(const Placement& placement, int rank, Exchange exchange, int readers)
      : placement_(placement),
        rank_(rank),
        node_(placement.node_of(rank)),
        exchange_(std::move(exchange)) {
    int smallest = placement.ranks();
    for (int node = 0; node < placement.nodes(); ++node)
      smallest = std::min(smallest, SizeOf(node));
    largest_ = placement.ranks_on_largest_node();
    arrivals_ = (largest_ + smallest - 1) / smallest * (placement.nodes() - 1);
    readers_ = readers > 0 ? readers : std::max(1, largest_ - 1);
    depth_ = (largest_ - 1 + readers_ - 1) / readers_;
  }

  Flow Build() {
    Flow flow{.name = "column_" + exchange_.name, .rank = rank_, .ranks = placement_.ranks()};
    flow.own = {rank_};
    flow.times = exchange_.times + depth_;
    flow.ids = NodeId(depth_ + (depth_ == 0 ? 1 : 0), 0);
    flow.slots = 1 + arrivals_;
    flow.back_slots = std::max(1, (largest_ - 1) * (1 + arrivals_) + arrivals_);
    flow.back_period = (exchange_.longest_stay + 2) / 2;

    // Each rank begins with what it carries itself, so that not all read from one rank at once.
    const std::span<const int> local = placement_.ranks_on(node_);
    const int place = placement_.local_of(rank_);
    for (std::size_t turn = 0; turn < local.size(); ++turn) {
      const int owner = local[(static_cast<std::size_t>(place) + turn) % local.size()];
      SpreadInNode(flow, owner, {owner}, 0, 0, 0);
    }
    for (std::size_t i = 0; i < exchange_.steps.size(); ++i) {
      const ExchangeStep& step = exchange_.steps[i];
      for (int turn = 0; turn < largest_; ++turn) {
        const int column = (place + turn) % largest_;
        if (CarrierOf(column, node_) == rank_) {
          AddWire(flow, flow.sends, i, step.to, column, step.sent, /*sending=*/true);
          AddWire(flow, flow.receives, i, step.from, column, step.received, /*sending=*/false);
        }
        const std::vector<int> blocks = BlocksOf(column, step.received);
        if (!blocks.empty())
          SpreadInNode(flow, CarrierOf(column, node_), blocks, step.time + 1,
                       1 + static_cast<int>(i), 1 + ArrivalAt(column, node_, step));
      }
    }
    return flow;
  }

 private:
  int SizeOf(int node) const { return static_cast<int>(placement_.ranks_on(node).size()); }
  int CarrierOf(int column, int node) const {
    return placement_.ranks_on(node)[static_cast<std::size_t>(column % SizeOf(node))];
  }
  /// Place among the arrivals at the carrier of `column` on `node`.
  int ArrivalAt(int column, int node, const ExchangeStep& step) const {
    return column / SizeOf(node) * (placement_.nodes() - 1) + step.offset;
  }
  std::vector<int> BlocksOf(int column, const std::vector<int>& nodes) const {
    std::vector<int> blocks;
    for (const int node : nodes)
      if (column < SizeOf(node))
        blocks.push_back(placement_.ranks_on(node)[static_cast<std::size_t>(column)]);
    return blocks;
  }

  void AddWire(const Flow& flow, std::vector<Hop>& hops, std::size_t i, int node, int column,
               const std::vector<int>& nodes, bool sending) const {
    const std::vector<int> blocks = BlocksOf(column, nodes);
    if (blocks.empty()) return;
    const ExchangeStep& step = exchange_.steps[i];
    const int sender = sending ? node_ : node;
    const int receiver = sending ? node : node_;
    Hop hop{.time = step.time, .peer = CarrierOf(column, node), .medium = Hop::Medium::kWire};
    hop.id = 1 + static_cast<int>(i);
    hop.slot = 1 + ArrivalAt(column, receiver, step);
    hop.back_slot = flow.back_slots - arrivals_ + ArrivalAt(column, sender, step);
    hop.leaf = step.is_last_hop && SizeOf(receiver) == 1;
    hop.blocks = RunsOf(blocks);
    hops.push_back(std::move(hop));
  }

  /// Of the hops inside a node of what was there from the start (arrival 0) or came by the step
  /// arrival - 1, `depth` hops from its carrier. In chains, two ranks may share an id at one time
  /// for several carriers, which is why these are not for the forward direction.
  int NodeId(int depth, int arrival) const {
    const int steps = static_cast<int>(exchange_.steps.size());
    if (depth == 0) return arrival == 0 ? 0 : steps + arrival;
    return 1 + steps + depth * (1 + steps) - 1 + arrival;
  }

  /// The hops of this rank by which `carrier`, of its node, offers `blocks` to the rest of it: to
  /// `readers_` others, each of which offers them to the next one, and so on.
  void SpreadInNode(Flow& flow, int carrier, const std::vector<int>& blocks, int time, int arrival,
                    int slot) const {
    const std::span<const int> local = placement_.ranks_on(node_);
    const int size = SizeOf(node_);
    const int carrier_place = placement_.local_of(carrier);
    const auto at = [&](int place) {
      return local[static_cast<std::size_t>((carrier_place + place) % size)];
    };
    // Of `place` places behind the carrier: where what concerns the carrier begins in its stage.
    const auto part_of = [&](int place) {
      const int reader_place = placement_.local_of(at(place));
      const int among_others = carrier_place < reader_place ? carrier_place : carrier_place - 1;
      return among_others * (1 + arrivals_);
    };
    const auto hop = [&](int peer, int reader) {
      const int depth = (reader - 1) / readers_;
      return Hop{.time = time + depth,
                 .peer = peer,
                 .medium = Hop::Medium::kNode,
                 .id = NodeId(depth, arrival),
                 .slot = slot,
                 .back_slot = part_of(reader) + slot,
                 .leaf = reader + readers_ >= size,
                 .blocks = RunsOf(blocks)};
    };
    const int place = (placement_.local_of(rank_) - carrier_place + size) % size;
    if (place > 0) {
      flow.receives.push_back(hop(at(std::max(0, place - readers_)), place));
      if (place + readers_ < size)
        flow.sends.push_back(hop(at(place + readers_), place + readers_));
      return;
    }
    for (int reader = 1; reader <= readers_ && reader < size; ++reader)
      flow.sends.push_back(hop(at(reader), reader));
  }

  const Placement& placement_;
  const int rank_;
  const int node_;
  const Exchange exchange_;
  int largest_ = 0;
  int arrivals_ = 0;  ///< Blocks that a carrier gets over the wire, at most.
  int readers_ = 1;   ///< Of a carrier's stage, each the first of a chain.
  int depth_ = 0;     ///< Of the longest chain.
};

}  // namespace

Flow ColumnFlow(const Placement& placement, int rank, Exchange exchange, int readers) {
  return Column(placement, rank, std::move(exchange), readers).Build();
}

}  // namespace tidegate
