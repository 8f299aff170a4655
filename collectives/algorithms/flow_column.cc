// Column first: for each local index, one exchange between the nodes; every rank drives the wire
// with its own shard, and what arrives in a rank's stage is read there by the rest of its node
// while the next is on the wire.
//
// Cost: the exchange between n nodes, of shards s = S/p in g columns at once: (n-1)/n S beta2 of
// the node's link, the lower bound, for every placement; beside it, pipelined, (p-1)/p S beta1
// inside. Extra memory: n shards' chunks forwards, g n backwards, twice. Order of reduction,
// backwards: a node's ranks in one pass, in their order, with what came over the wire among them;
// one rounding a node. Source: hierarchical copy-engine all-gather of NCCL 2.30; PCCL (arXiv
// 2504.18658).
//
// Nodes of different sizes: column c exists where a node has more than c ranks; on a smaller node
// its carrier is local rank c modulo the node's size.

#include <algorithm>

#include "collectives/algorithms/flows.h"

namespace tidegate {
namespace {

class Column {
 public:
  Column(const Placement& placement, int rank, ExchangeMaker make)
      : placement_(placement),
        rank_(rank),
        node_(placement.node_of(rank)),
        exchange_(make(node_, placement.nodes())) {
    int smallest = placement.ranks();
    for (int node = 0; node < placement.nodes(); ++node)
      smallest = std::min(smallest, SizeOf(node));
    largest_ = placement.ranks_on_largest_node();
    arrivals_ = (largest_ + smallest - 1) / smallest * (placement.nodes() - 1);
  }

  Flow Build() {
    const bool spreads = largest_ > 1;
    Flow flow{.name = "column_" + exchange_.name, .rank = rank_, .ranks = placement_.ranks()};
    flow.own = {rank_};
    flow.times = exchange_.times + (spreads ? 1 : 0);
    flow.ids = 2 * static_cast<int>(exchange_.steps.size()) + 1;
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
                       1 + static_cast<int>(exchange_.steps.size() + i),
                       1 + ArrivalAt(column, node_, step));
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

  /// The hops of this rank by which `carrier`, of its node, offers `blocks` to the rest of it.
  void SpreadInNode(Flow& flow, int carrier, const std::vector<int>& blocks, int time, int id,
                    int slot) const {
    const int carrier_place = placement_.local_of(carrier);
    const auto hop = [&](int peer, int reader) {
      const int reader_place = placement_.local_of(reader);
      const int among_others = carrier_place < reader_place ? carrier_place : carrier_place - 1;
      return Hop{.time = time,
                 .peer = peer,
                 .medium = Hop::Medium::kNode,
                 .id = id,
                 .slot = slot,
                 .back_slot = among_others * (1 + arrivals_) + slot,
                 .leaf = true,
                 .blocks = RunsOf(blocks)};
    };
    if (carrier != rank_) {
      flow.receives.push_back(hop(carrier, rank_));
      return;
    }
    const int size = SizeOf(node_);
    for (int i = 1; i < size; ++i) {
      const int reader =
          placement_.ranks_on(node_)[static_cast<std::size_t>((carrier_place + i) % size)];
      flow.sends.push_back(hop(reader, reader));
    }
  }

  const Placement& placement_;
  const int rank_;
  const int node_;
  const Exchange exchange_;
  int largest_ = 0;
  int arrivals_ = 0;  ///< Blocks that a carrier gets over the wire, at most.
};

}  // namespace

Flow ColumnFlow(const Placement& placement, int rank, ExchangeMaker exchange) {
  return Column(placement, rank, exchange).Build();
}

}  // namespace tidegate
