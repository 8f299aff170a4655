// Whatever the text, reading it as a topology ends with an error or with a graph that survives
// being written, read again, routed, linted and bounded.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "collectives/topology/bounds.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/lint.h"
#include "collectives/topology/routes.h"
#include "collectives/topology/topology_json.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidegate;  // NOLINT: a program of one function
  static const Topology discovered = FakeCluster(2, 2, {.rails = 2});
  // Small enough that no input takes long; the product has the same checks with greater numbers.
  const TopologyReadOptions options = {.discovered = &discovered,
                                       .limits = {.ranks = 64, .vertices = 512, .links = 1024},
                                       .json = {.bytes = std::size_t{1} << 16}};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Topology> read = ParseTopology(text, options);
  if (!read.ok()) {
    TIDEGATE_CHECK(!read.status().message().empty());
    return 0;
  }
  const Topology& topology = read.value();
  const Result<Topology> again = ParseTopology(FormatTopology(topology), options);
  TIDEGATE_CHECK(again.ok());
  TIDEGATE_CHECK(again.value() == topology);
  TIDEGATE_CHECK(topology.placement().ranks() == topology.ranks());

  LintTopology(topology);
  Router router(topology);
  const Route route = router.Find(0, topology.ranks() - 1);
  VertexId at = topology.rank_vertex(0);
  for (const LinkId id : route.links) {
    TIDEGATE_CHECK(topology.from(id) == at);
    at = topology.to(id);
  }
  TIDEGATE_CHECK(route.path == PathClass::kDis || at == topology.rank_vertex(topology.ranks() - 1));
  const double seconds = AllGatherBound(topology, 1e6).seconds;
  TIDEGATE_CHECK(std::isfinite(seconds) && (seconds > 0) == (topology.ranks() > 1));
  return 0;
}
