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
/// `exchange` between nodes, that of this rank's, for each column (the ranks of one local index),
/// and what arrives is spread inside the node while the next is on the wire. Nodes may differ in
/// size.
///
/// The rest of the node reads it from the carrier's stage. With `readers` above 0, only so many do,
/// each at the head of a chain in which every rank reads from the one before: for flows that are
/// run backwards, and these alone. There a rank in a chain reduces what it reads together with its
/// own input into its stage, whereas one at the end, as all are without chains, must copy it there.
Flow ColumnFlow(const Placement& placement, int rank, Exchange exchange, int readers = 0);
/// `exchange` between the first ranks of the nodes, of all that their nodes hold.
Flow LeaderFlow(const Placement& placement, int rank, ExchangeMaker exchange);
/// One block from `root` to all: a binomial tree over nodes, the stage inside each.
Flow TreeFlow(const Placement& placement, int rank, int root);
/// One tensor from `root` to all: a column for each local index, `make` between nodes.
Flow ColumnBroadcastFlow(const Placement& placement, int rank, int root, NodeBroadcastMaker make);

}  // namespace tidegate
