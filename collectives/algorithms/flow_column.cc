// Column first: for each local index, one exchange between the nodes; every rank drives the wire
// with its own shard, and what arrives in a rank's stage is read there by the rest of its node
// while the next is on the wire.
//
// Cost: the exchange between n nodes, of shards s = S/p in g columns at once: its rounds and alpha2
// (exchange.cc, exchange_circle.cc), and (n-1)/n S beta2 of the node's link, the lower bound, for
// every placement; beside it, pipelined, (p-1)/p S beta1 inside, whose last round is beside
// nothing. Extra memory: n shards' chunks forwards, g n backwards (of a circle, n and some), twice.
// Order of reduction, backwards: a node's ranks in one pass, in their order, with what came over
// the wire among them; one rounding a node, of which a circle goes through two at most, and with
// chains of readers one for each rank of a chain. Source: hierarchical copy-engine all-gather of
// NCCL 2.30; PCCL (arXiv 2504.18658).
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
    const int columns = (largest_ + smallest - 1) / smallest;
    arrivals_ = columns * (placement.nodes() - 1);
    window_ = placement.nodes() - 1;
    if (exchange_.back_window > 0) window_ = std::min(window_, exchange_.back_window);
    staged_ = 1 + columns * window_;
    readers_ = readers > 0 ? readers : std::max(1, largest_ - 1);
    depth_ = (largest_ - 1 + readers_ - 1) / readers_;
  }

  Flow Build() {
    Flow flow{.name = "column_" + exchange_.name, .rank = rank_, .ranks = placement_.ranks()};
    flow.own = {rank_};
    flow.times = exchange_.times;
    if (depth_ > 0) flow.times += exchange_.wire_flight + (depth_ - 1) * exchange_.node_flight;
    flow.ids = NodeId(depth_ + (depth_ == 0 ? 1 : 0), 0);
    flow.slots = 1 + arrivals_;
    flow.back_slots = std::max(1, (largest_ - 1) * staged_ + arrivals_);
    flow.period = (exchange_.wire_flight + exchange_.node_flight + 1) / 2;
    flow.back_period = (exchange_.longest_stay + 2) / 2;

    // Each rank begins with what it carries itself, so that not all read from one rank at once.
    const std::span<const int> local = placement_.ranks_on(node_);
    const int place = placement_.local_of(rank_);
    for (std::size_t turn = 0; turn < local.size(); ++turn) {
      const int owner = local[(static_cast<std::size_t>(place) + turn) % local.size()];
      SpreadInNode(flow, owner, {owner}, {});
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
          SpreadInNode(flow, CarrierOf(column, node_), blocks, ArrivalBy(i, column));
      }
    }
    return flow;
  }

 private:
  /// Of a step among those that have words of their own, from 1.
  int NumberOf(std::size_t i) const {
    return 1 + (exchange_.shares_words ? exchange_.steps[i].time : static_cast<int>(i));
  }
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
    Hop hop{.time = step.time,
            .flight = exchange_.wire_flight,
            .peer = CarrierOf(column, node),
            .medium = Hop::Medium::kWire};
    hop.id = NumberOf(i);
    hop.slot = 1 + ArrivalAt(column, receiver, step);
    hop.back_slot = flow.back_slots - arrivals_ + ArrivalAt(column, sender, step);
    hop.leaf = step.is_last_hop && SizeOf(receiver) == 1;
    hop.blocks = RunsOf(blocks);
    hops.push_back(std::move(hop));
  }

  /// Of the hops inside a node of what was there from the start (arrival 0) or came by the steps
  /// of that number, `depth` hops from its carrier. In chains, two ranks may share an id at one
  /// time for several carriers, which is why these are not for the forward direction.
  int NodeId(int depth, int arrival) const {
    const int steps =
        exchange_.shares_words ? exchange_.times : static_cast<int>(exchange_.steps.size());
    if (depth == 0) return arrival == 0 ? 0 : steps + arrival;
    return 1 + steps + depth * (1 + steps) - 1 + arrival;
  }

  /// What is spread inside a node: what its carrier owns, or what came to it by a step.
  struct Arrival {
    int time = 0;
    int number = 0;            ///< 0: owned.
    int slot = 0;              ///< Sub-slot of the carrier's stage.
    int back_slot = 0;         ///< Of a reader's, among those for this carrier.
    int before = 0;            ///< The number of what was in back_slot before,
    bool is_of_chunk = false;  ///< in this chunk.
  };
  Arrival ArrivalBy(std::size_t i, int column) const {
    const ExchangeStep& step = exchange_.steps[i];
    const int at = ArrivalAt(column, node_, step);
    Arrival arrival{.time = step.time + exchange_.wire_flight,
                    .number = NumberOf(i),
                    .slot = 1 + at,
                    .back_slot = 1 + at};
    if (window_ == placement_.nodes() - 1) return arrival;
    arrival.back_slot = 1 + column / SizeOf(node_) * window_ + step.offset % window_;
    // Backwards the steps come in the reverse order.
    const auto window = static_cast<std::size_t>(window_);
    for (std::size_t later = i + window; later < exchange_.steps.size(); later += window) {
      if (BlocksOf(column, exchange_.steps[later].received).empty()) continue;
      arrival.before = NumberOf(later);
      arrival.is_of_chunk = true;
      return arrival;
    }
    for (std::size_t first = i % window; arrival.before == 0; first += window)
      if (!BlocksOf(column, exchange_.steps[first].received).empty())
        arrival.before = NumberOf(first);
    return arrival;
  }

  /// The hops of this rank by which `carrier`, of its node, offers `blocks` to the rest of it: to
  /// `readers_` others, each of which offers them to the next one, and so on.
  void SpreadInNode(Flow& flow, int carrier, const std::vector<int>& blocks,
                    const Arrival& arrival) const {
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
      return among_others * staged_;
    };
    const auto hop = [&](int peer, int reader) {
      const int depth = (reader - 1) / readers_;
      return Hop{.time = arrival.time + depth * exchange_.node_flight,
                 .flight = exchange_.node_flight,
                 .peer = peer,
                 .medium = Hop::Medium::kNode,
                 .id = NodeId(depth, arrival.number),
                 .slot = arrival.slot,
                 .back_slot = part_of(reader) + arrival.back_slot,
                 .back_before = {arrival.before > 0 ? NodeId(depth, arrival.before) : -1,
                                 arrival.is_of_chunk},
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
  int window_ = 1;    ///< Backwards, of those of a column, how many a rank stages at a time,
  int staged_ = 1;    ///< and sub-slots for all that it stages for one carrier.
  int readers_ = 1;   ///< Of a carrier's stage, each the first of a chain.
  int depth_ = 0;     ///< Of the longest chain.
};

}  // namespace

Flow ColumnFlow(const Placement& placement, int rank, Exchange exchange, int readers) {
  return Column(placement, rank, std::move(exchange), readers).Build();
}

}  // namespace tidegate
