// Column broadcast: the tensor is cut into one column for each local index, and every rank drives
// the wire with its own; between nodes a column goes by a chain, or by a scatter and an all-gather
// (node_broadcast.h). The root's node reads all of it from the root's stage, the others read what
// has come over the wire where it arrived. Backwards a reduction.
//
// Cost: alpha1 + that between n nodes of S/g a column, all g at once; beside it, pipelined, S beta1
// inside. Extra memory: 2 K g chunks, K pieces a column (1 or n); backwards 2 (K g + M), M the
// pieces that a node sends forwards. Order of reduction, backwards: a node's ranks in one pass, in
// their order, with what came over the wire among them; one rounding a node. Sources: van de
// Geijn's scatter and all-gather, as in Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, section
// 4.2, and backwards Rabenseifner's reduce-scatter and gather, section 4.4; the pipelined chain, as
// in Sanders, Speck, Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// Parallel Computing 35(12), 2009.
//
// Nodes of different sizes: there are as many columns as the largest node has ranks; on a smaller
// node the carrier of column c is local rank c modulo the node's size.
//
// A binomial tree between the nodes is left out: it never won in the simulator
// (docs/algorithms.md).

#include <algorithm>

#include "collectives/algorithms/flows.h"

namespace tidegate {
namespace {

class ColumnBroadcast {
 public:
  ColumnBroadcast(const Placement& placement, int rank, int root, NodeBroadcastMaker make)
      : placement_(placement),
        rank_(rank),
        root_(root),
        node_(placement.node_of(rank)),
        columns_(placement.ranks_on_largest_node()),
        plan_(make(PlaceOf(node_), placement.nodes())) {}

  Flow Build() {
    const bool is_offered = SizeOf(placement_.node_of(root_)) > 1;
    const int first_time = is_offered ? 1 : 0;
    const int parts = columns_ * plan_.pieces;
    Flow flow{.name = "column_" + plan_.name, .rank = rank_, .ranks = placement_.ranks()};
    flow.root = root_;
    flow.parts = parts;
    for (int part = 0; rank_ == root_ && part < parts; ++part) flow.own.push_back(part);
    flow.times = first_time + plan_.times + (columns_ > 1 ? 1 : 0);
    flow.ids = 1 + 2 * plan_.steps;
    int most_columns = 1;  // Of one carrier.
    for (int node = 0; node < placement_.nodes(); ++node)
      most_columns = std::max(most_columns, (columns_ + SizeOf(node) - 1) / SizeOf(node));
    flow.slots = std::max(is_offered ? parts : 1, most_columns * plan_.pieces);
    const int back_arrivals = columns_ > 1 ? parts : 0;  // Behind what is offered to the node.
    flow.back_slots = back_arrivals + most_columns * std::max(1, plan_.sent_pieces);
    flow.back_period = plan_.back_period;

    if (is_offered && node_ == placement_.node_of(root_))
      Offer(flow, root_, {.blocks = {{0, parts}}});
    const int place = placement_.local_of(rank_);
    for (int turn = 0; turn < columns_; ++turn) {
      const int column = (place + turn) % columns_;
      const int carrier = CarrierOf(column, node_);
      for (const bool sending : {false, true}) {
        for (const NodeHop& hop : sending ? plan_.sends : plan_.receives) {
          const int there = NodeAt(hop.peer);
          const int receiver = sending ? there : node_;
          const int sender = sending ? node_ : there;
          std::vector<int> blocks;
          blocks.reserve(hop.pieces.size());
          for (const int piece : hop.pieces) blocks.push_back(column * plan_.pieces + piece);
          Hop wire{.time = first_time + hop.time,
                   .peer = CarrierOf(column, there),
                   .medium = Hop::Medium::kWire,
                   .id = 1 + hop.step,
                   .slot = column / SizeOf(receiver) * plan_.pieces + hop.offset,
                   .back_slot = back_arrivals + column / SizeOf(sender) * plan_.sent_pieces +
                                hop.back_offset,
                   .leaf = hop.is_last && SizeOf(receiver) == 1,
                   .blocks = RunsOf(blocks)};
          Hop inside = wire;
          inside.time += 1;
          inside.medium = Hop::Medium::kNode;
          inside.id = 1 + plan_.steps + hop.step;
          inside.back_slot = column * plan_.pieces + hop.offset;
          inside.leaf = true;
          if (carrier == rank_) (sending ? flow.sends : flow.receives).push_back(std::move(wire));
          if (!sending) Offer(flow, carrier, std::move(inside));
        }
      }
    }
    return flow;
  }

 private:
  int SizeOf(int node) const { return static_cast<int>(placement_.ranks_on(node).size()); }
  int CarrierOf(int column, int node) const {
    return placement_.ranks_on(node)[static_cast<std::size_t>(column % SizeOf(node))];
  }
  /// Nodes are counted from the root's.
  int PlaceOf(int node) const {
    const int nodes = placement_.nodes();
    return (node - placement_.node_of(root_) + nodes) % nodes;
  }
  int NodeAt(int place) const { return (placement_.node_of(root_) + place) % placement_.nodes(); }

  /// The hops of this rank by which `owner`, of its node, offers it to the rest of the node.
  void Offer(Flow& flow, int owner, Hop hop) const {
    if (owner != rank_) {
      hop.peer = owner;
      flow.receives.push_back(std::move(hop));
      return;
    }
    const int size = SizeOf(node_);
    for (int i = 1; i < size; ++i) {
      hop.peer = placement_.ranks_on(
          node_)[static_cast<std::size_t>((placement_.local_of(rank_) + i) % size)];
      flow.sends.push_back(hop);
    }
  }

  const Placement& placement_;
  const int rank_;
  const int root_;
  const int node_;
  const int columns_;
  const NodeBroadcast plan_;
};

}  // namespace

Flow ColumnBroadcastFlow(const Placement& placement, int rank, int root, NodeBroadcastMaker make) {
  return ColumnBroadcast(placement, rank, root, make).Build();
}

}  // namespace tidegate
