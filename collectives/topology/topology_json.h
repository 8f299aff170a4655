#pragma once

#include <string>
#include <string_view>

#include "collectives/topology/topology.h"
#include "common/json/parse_json.h"

namespace tidegate {

struct TopologyReadOptions {
  /// What a partial file is merged over; refers to it during the call. Full files ignore it.
  const Topology* discovered = nullptr;
  TopologyLimits limits = {};
  JsonLimits json = {};
};

/// Reads a description of the schema of docs/topology.md ("tidegate_topology": 1): templates of
/// nodes with a count, a fabric by its figures, single vertices and links, and overrides by id.
/// kInvalidArgument with line or JSON path, the reason, and what would be right.
Result<Topology> ParseTopology(std::string_view text, const TopologyReadOptions& options = {});

/// ParseTopology of a file; errors start with its path.
Result<Topology> LoadTopology(const std::string& path, const TopologyReadOptions& options = {});

/// A full description that ParseTopology reads back as an equal topology. Consecutive nodes of
/// equal make are written once; a fabric is written switch by switch.
std::string FormatTopology(const Topology& topology);

/// Writes FormatTopology to a file, which is replaced as a whole. kInvalidArgument, naming path and
/// reason, if that cannot be done.
Status DumpTopology(const Topology& topology, const std::string& path);

}  // namespace tidegate
