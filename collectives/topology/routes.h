#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/topology/topology.h"

namespace tidegate {

/// The way from one rank to another.
struct Route {
  std::vector<LinkId> links;         ///< Directed, in order; empty where the ranks are one.
  double latency_s = 0;              ///< Sum over the links.
  double bandwidth_Bps = 0;          ///< Of the slowest link; infinite for an empty route.
  PathClass path = PathClass::kLoc;  ///< kDis: there is none.
  std::int16_t rail = kNone;  ///< Rail of the NIC it leaves its node by; kNone inside a node.
};

/// A part of what one rank sends to another, and its way.
struct Stripe {
  Route route;
  double share = 1;
};

/// A NIC as a rank or a node sees it.
struct Rail {
  VertexId nic = kNone;
  std::int16_t rail = kNone;             ///< Number of the rail that the NIC is on.
  PathClass affinity = PathClass::kDis;  ///< From the rank to the NIC; kLoc for a whole node.
  double latency_s = 0;                  ///< From the rank to the far end of the NIC's port.
  /// The lesser of the way from the rank to the NIC and of the NIC's ports: what stripes are
  /// weighted by. For a node: of the ports.
  double bandwidth_Bps = 0;
};

/// Finds routes on demand and keeps, for each rank asked for, the ways inside its node, and for
/// each fabric switch asked for those to other switches. Ways inside a node prefer the closest path
/// class, then few links, then low latency; ranks and NICs are never passed through, GPUs only over
/// NVLink (NVB, PXN). Between nodes the NIC pair is chosen by, in order: fewest links through the
/// fabric; the same rail, where a node's NICs are on different switches; the closest affinity on
/// both sides (PIX before PXB before PXN before PHB before SYS), on the sending side last, so that
/// data change rails inside the sender's node; the NICs that the ranks prefer (see Rails).
///
/// Cost: a few microseconds a route once its ranks were asked for (the square of the NICs of a
/// node, less where the preferred NICs match); memory O(vertices of a node) a rank, O(switches) a
/// switch. Refers to the topology, which must outlive it. One thread at a time.
class Router {
 public:
  explicit Router(const Topology& topology);
  ~Router();

  /// The best route.
  Route Find(int from, int to);
  /// As Find, reusing the memory of `route`.
  void Find(int from, int to, Route& route);
  /// The route between ranks of different nodes that leaves and enters them by their NICs on
  /// `rail`; path kDis if a node has none there or they do not reach each other.
  void FindOnRail(int from, int to, int rail, Route& route);

  /// How bytes between ranks of different nodes are divided over the NICs closest to `from`: in
  /// proportion to the rates of their ways, each on its own rail. One stripe, the best route, where
  /// there are not two such ways.
  void FindStripes(int from, int to, std::vector<Stripe>& stripes);

  /// The NICs that `rank` can send by, best first: by affinity, then, of those equally close,
  /// starting with number (local rank modulo their count), so that ranks spread over them.
  const std::vector<Rail>& Rails(int rank);
  /// The NICs of `node` that lead into the fabric, in the order of their vertices.
  const std::vector<Rail>& RailsOfNode(int node);
  /// Sum of the bandwidth of RailsOfNode, into the fabric.
  double NodeBandwidth(int node);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidegate
