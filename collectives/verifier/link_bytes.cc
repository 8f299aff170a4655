#include "collectives/verifier/link_bytes.h"

#include "collectives/topology/routes.h"

namespace tidegate {

std::vector<double> BytesPerLink(const Topology& topology, std::span<const RankBytes> moved,
                                 bool striped) {
  std::vector<double> bytes_of_link(static_cast<std::size_t>(topology.link_end()), 0);
  Router router(topology);
  std::vector<Stripe> stripes(1);
  for (const auto& [from, to, bytes] : moved) {
    if (striped && topology.node_of(from) != topology.node_of(to)) {
      router.FindStripes(from, to, stripes);
    } else {
      stripes.resize(1);
      router.Find(from, to, stripes.front().route);
      stripes.front().share = 1;
    }
    for (const Stripe& stripe : stripes)
      for (const LinkId link : stripe.route.links)
        bytes_of_link[static_cast<std::size_t>(link)] += static_cast<double>(bytes) * stripe.share;
  }
  return bytes_of_link;
}

}  // namespace tidegate
