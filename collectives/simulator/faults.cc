#include "collectives/simulator/faults.h"

#include <string>
#include <utility>
#include <vector>

namespace tidegate {

Result<Topology> WithFaults(const Topology& topology, std::span<const LinkFault> faults) {
  std::vector<double> factors(topology.links().size(), 1);
  for (const LinkFault& fault : faults) {
    if (fault.link < 0 || fault.link >= topology.link_end())
      return Status(StatusCode::kInvalidArgument,
                    "a fault of link " + std::to_string(fault.link) + "; there are " +
                        std::to_string(topology.link_end()) + " directed links");
    if (!(fault.factor >= 0 && fault.factor <= 1))
      return Status(StatusCode::kInvalidArgument,
                    "link \"" + topology.link_name(fault.link) + "\" at " +
                        std::to_string(fault.factor) +
                        " of its bandwidth; give 0 for a dead link, at most 1");
    factors[static_cast<std::size_t>(fault.link / 2)] *= fault.factor;
  }
  TopologyParts parts = topology.parts();
  parts.links.clear();
  parts.link_ids.clear();
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (factors[i] == 0) continue;
    Link link = topology.links()[i];
    for (double& bandwidth_Bps : link.bandwidth_Bps) bandwidth_Bps *= factors[i];
    const auto id = topology.parts().link_ids.find(static_cast<std::int32_t>(i));
    if (id != topology.parts().link_ids.end())
      parts.link_ids[static_cast<std::int32_t>(parts.links.size())] = id->second;
    parts.links.push_back(link);
  }
  return Topology::Make(std::move(parts));
}

}  // namespace tidegate
