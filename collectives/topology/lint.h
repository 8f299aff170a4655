#pragma once

#include <string>
#include <vector>

#include "collectives/topology/topology.h"

namespace tidegate {

/// Something in a description that is legal and hardly true.
struct TopologyFinding {
  std::string where;   ///< Id of the vertex or link.
  std::string what;    ///< What is odd about it, with the figure.
  std::string remedy;  ///< What to do.
  int alike = 0;       ///< Other places of the same kind (in other nodes, most often).
};

/// Looks for:
/// - figures that no hardware has: PCIe, NVLink, NICs and memory too fast, PCIe links of the kind
///   that emulated bridges state (2.5 GT/s x1), bandwidth and latency that look like another unit;
/// - NICs faster than the PCIe link they hang on, or slower than the link of their port;
/// - ranks that no route joins although links do; NICs and GPUs without links;
/// - nodes whose ranks reach no NIC, where there are several nodes;
/// - PCIe, NVLink and network links whose directions differ.
/// Findings are in the order of this list. Cost: a route from rank 0 to every other.
std::vector<TopologyFinding> LintTopology(const Topology& topology);

/// "where: what; remedy (and 7 like it)".
std::string FormatFinding(const TopologyFinding& finding);

}  // namespace tidegate
