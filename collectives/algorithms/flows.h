#pragma once

#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/flow.h"
#include "collectives/algorithms/node_broadcast.h"
#include "collectives/topology/placement.h"

namespace tidegate {

// What algorithms exist, as flows. Each is pure, and builds what one rank does without building
// what the others do.

/// Every rank gives its block to every other: the stage within a node, one message a pair beyond.
Flow DirectFlow(const Placement& placement, int rank);
/// `exchange` over all ranks, whatever their nodes.
Flow FlatFlow(const Placement& placement, int rank, ExchangeMaker exchange);
/// `exchange` between nodes for each column (the ranks of one local index), and what arrives is
/// spread inside the node while the next is on the wire. Nodes may differ in size.
Flow ColumnFlow(const Placement& placement, int rank, ExchangeMaker exchange);
/// `exchange` between the first ranks of the nodes, of all that their nodes hold.
Flow LeaderFlow(const Placement& placement, int rank, ExchangeMaker exchange);
/// One block from `root` to all: a binomial tree over nodes, the stage inside each.
Flow TreeFlow(const Placement& placement, int rank, int root);
/// One tensor from `root` to all: a column for each local index, `make` between nodes.
Flow ColumnBroadcastFlow(const Placement& placement, int rank, int root, NodeBroadcastMaker make);

}  // namespace tidegate
