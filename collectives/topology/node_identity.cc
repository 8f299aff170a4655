#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/topology/discovery.h"
#include "collectives/topology/subset.h"
#include "collectives/topology/topology_json.h"
#include "common/machine/machine.h"

namespace tidegate {

Result<std::string> NodeIdentity(const Config& config, const std::string& root) {
  if (!config.node_id.empty()) return config.node_id;
  Result<std::string> boot_id = BootId(root);
  if (boot_id.ok()) return boot_id;
  return Status(boot_id.status().code(),
                boot_id.status().message() + "; name this node with TIDEGATE_NODE_ID");
}

Result<std::string> ConfirmIdentity(std::span<const std::string> identities, int self,
                                    const SharedMemoryProbe& probe) {
  const std::string& own = identities[static_cast<std::size_t>(self)];
  std::vector<int> alike;
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    if (identities[rank] == own) alike.push_back(static_cast<int>(rank));
  }
  const Result<std::vector<bool>> shared = probe(alike);
  if (!shared.ok()) return shared.status();
  int lowest = self;
  for (std::size_t i = alike.size(); i-- > 0;) {
    if (i < shared.value().size() && shared.value()[i]) lowest = std::min(lowest, alike[i]);
  }
  return own + "#" + std::to_string(lowest);
}

Result<Placement> PlaceByIdentity(std::span<const std::string> identities) {
  std::unordered_map<std::string, int> number_of;
  std::vector<int> node_of;
  node_of.reserve(identities.size());
  for (const std::string& identity : identities)
    node_of.push_back(
        number_of.try_emplace(identity, static_cast<int>(number_of.size())).first->second);
  return Placement::Make(node_of);
}

Result<TopologySettings> TopologySettings::Read(const Config& config) {
  TopologySettings settings;
  settings.file_ = config.topo_file;
  settings.dump_file_ = config.topo_dump_file;
  if (config.topo_file.empty()) return settings;
  Result<std::string> text = ReadTextFile(config.topo_file, JsonLimits().bytes);
  if (!text.ok())
    return Status(text.status().code(), "TIDEGATE_TOPO_FILE: " + text.status().message());
  settings.text_ = std::move(text).value();
  return settings;
}

Result<Topology> TopologySettings::Apply(const Topology& discovered,
                                         std::span<const int> members) const {
  Topology topology = discovered;
  if (!file_.empty()) {
    Result<Topology> read = ParseTopology(text_, {.discovered = &discovered});
    if (!read.ok())
      return Status(read.status().code(),
                    "TIDEGATE_TOPO_FILE: " + file_ + ": " + read.status().message());
    topology = std::move(read).value();
    const bool fits = members.empty() ? topology.ranks() == discovered.ranks()
                                      : topology.ranks() >= discovered.ranks();
    if (!fits)
      return Status(StatusCode::kInvalidArgument,
                    "TIDEGATE_TOPO_FILE: " + file_ + " describes " +
                        std::to_string(topology.ranks()) + " ranks, the group has " +
                        std::to_string(discovered.ranks()) +
                        "; describe each rank, or make the file \"partial\"");
  }
  if (!members.empty()) return SelectRanks(topology, members);
  return topology;
}

Status TopologySettings::Dump(const Topology& topology) const {
  if (dump_file_.empty()) return Status();
  Status dumped = DumpTopology(topology, dump_file_);
  if (dumped.ok()) return dumped;
  return Status(dumped.code(), "TIDEGATE_TOPO_DUMP_FILE: " + dumped.message());
}

}  // namespace tidegate
