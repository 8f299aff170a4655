#pragma once

#include <string>
#include <vector>

namespace tidegate {

/// One message of a broadcast between nodes, as either end sees it. Nodes are counted from the
/// root's, which is 0.
struct NodeHop {
  int step = 0;  ///< Names it in waits, with those that are sent at the same time.
  int time = 0;
  int peer = 0;
  std::vector<int> pieces = {};
  int offset = 0;        ///< Pieces that the receiver gets before these.
  int back_offset = 0;   ///< Pieces that the sender sends before these.
  bool is_last = false;  ///< The receiver passes none of them on.
};

/// A way for one node's tensor, in equal pieces, to get to all nodes, as one of them sees it.
struct NodeBroadcast {
  std::string name;
  int pieces = 1;
  int sent_pieces = 1;  ///< By a node, at most.
  int times = 0;
  int steps = 0;
  int back_period = 1;  ///< As Flow::back_period.
  std::vector<NodeHop> receives = {};
  std::vector<NodeHop> sends = {};
};
using NodeBroadcastMaker = NodeBroadcast (*)(int me, int nodes);

/// Each node to the next one: (n-1) alpha + S beta, pipelined: every link carries the tensor once.
NodeBroadcast ChainBroadcast(int me, int nodes);
/// A piece to each node, then an all-gather of them by pairs: 2 alpha + 2 (n-1)/n S beta at the
/// root, half of that elsewhere.
NodeBroadcast ScatterPairwiseBroadcast(int me, int nodes);
/// The same by Bruck's all-gather: (1 + ceil(log2 n)) alpha, and fewer messages.
NodeBroadcast ScatterBruckBroadcast(int me, int nodes);

}  // namespace tidegate
