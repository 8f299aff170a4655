#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/topology/placement.h"
#include "common/status.h"

namespace tidegate {

enum class VertexKind : std::uint8_t { kNode, kNuma, kCache, kCore, kGpu, kNic, kSwitch, kRank };
std::string_view VertexKindName(VertexKind kind);  ///< "node", "numa", ...
std::optional<VertexKind> ParseVertexKind(std::string_view name);

/// How close two devices are, in NCCL's words and order, nearest first: same device, NVLink, NVLink
/// through another GPU, C2C, one PCIe switch, several, PCIe through another GPU, the CPU's host
/// bridge, the link between sockets, the network, not connected.
enum class PathClass : std::uint8_t {
  kLoc,
  kNvl,
  kNvb,
  kC2c,
  kPix,
  kPxb,
  kPxn,
  kPhb,
  kSys,
  kNet,
  kDis
};
std::string_view PathClassName(PathClass path);  ///< "LOC", "NVL", ...
std::optional<PathClass> ParsePathClass(std::string_view name);

using VertexId = std::int32_t;  ///< Index in Topology::vertices().
/// One direction of a link: 2 * index in Topology::links() for a to b, and one more for b to a.
using LinkId = std::int32_t;
constexpr std::int32_t kNone = -1;

struct Vertex {
  VertexKind kind = VertexKind::kNode;
  std::int16_t rail = kNone;    ///< NIC: number of its rail, from 0.
  std::int32_t node = kNone;    ///< Number of its node; kNone in the fabric between nodes.
  VertexId parent = kNone;      ///< What contains it; kNone for nodes and the fabric.
  std::int32_t number = kNone;  ///< Rank: its rank. Core, NUMA node: the kernel's number.
  double bandwidth_Bps = 0;     ///< NIC: rate of its port, each way. 0: not known, or no NIC.
  std::string id;               ///< Unique: "node0/gpu3".

  bool operator==(const Vertex&) const = default;
};

/// A link of two directions between two vertices.
struct Link {
  VertexId a = kNone;
  VertexId b = kNone;
  double latency_s = 0;                          ///< Each way.
  std::array<double, 2> bandwidth_Bps = {0, 0};  ///< From a to b, from b to a.
  /// The two directions draw on one capacity, as on a memory bus: their sum, too, stays below the
  /// bandwidth. Otherwise full duplex. (Flows of one direction always share it.)
  bool shared = false;
  /// What it is: LOC inside a device or a NUMA node, NVL, C2C, PIX for PCIe, SYS between sockets,
  /// NET. The class of a path follows from its links (routes.h).
  PathClass path = PathClass::kLoc;

  bool operator==(const Link&) const = default;
};

/// What the sizes of a description must not exceed: 8,192 nodes of eight GPUs and NICs fit.
struct TopologyLimits {
  std::int64_t ranks = 1 << 17;
  std::int64_t vertices = 1 << 22;
  std::int64_t links = 1 << 23;
};

/// Figures beyond these are mistakes, and would spoil sums. (Smaller absurdities: lint.h.)
constexpr double kLeastBandwidthBps = 1;
constexpr double kMostBandwidthBps = 1e18;
constexpr double kMostLatencySeconds = 3600;

/// The raw parts of a Topology. Ids of links are derived ("a--b") unless named in `link_ids`, which
/// parallel links need.
struct TopologyParts {
  std::string name;
  std::vector<Vertex> vertices;
  std::vector<Link> links;
  std::unordered_map<std::int32_t, std::string> link_ids;
};

/// A machine or a cluster as a graph: what there is, what it is joined by, at which rate. Rank r is
/// a vertex, too, linked to what it runs on (a GPU, cores), and that link bounds what it moves.
/// Immutable, copyable; safe to read from any thread. Memory: about 100 bytes a vertex or link.
///
/// Vertices of a node are consecutive, nodes ascend, the fabric comes last; links are in the same
/// order, those within nodes first.
class Topology {
 public:
  /// Checks and orders the parts. kInvalidArgument, naming ids, for: no rank or node, rank numbers
  /// that are not 0 .. p-1, duplicate ids, links to nothing or from a vertex to itself, bandwidth
  /// or latency out of the range above, containment that is cyclic or crosses
  /// nodes, a rank or NIC outside a node, ranks that cannot reach each other, too large.
  static Result<Topology> Make(TopologyParts parts, const TopologyLimits& limits = {});

  const std::string& name() const { return parts_.name; }
  std::span<const Vertex> vertices() const { return parts_.vertices; }
  std::span<const Link> links() const { return parts_.links; }
  const Vertex& vertex(VertexId v) const { return parts_.vertices[static_cast<std::size_t>(v)]; }
  const Link& link(LinkId id) const { return parts_.links[static_cast<std::size_t>(id / 2)]; }

  int ranks() const { return static_cast<int>(rank_vertex_.size()); }
  int nodes() const { return static_cast<int>(node_vertex_.size()); }
  VertexId rank_vertex(int rank) const { return rank_vertex_[static_cast<std::size_t>(rank)]; }
  VertexId node_vertex(int node) const { return node_vertex_[static_cast<std::size_t>(node)]; }
  int node_of(int rank) const { return vertex(rank_vertex(rank)).node; }
  /// First vertex of `node`; that of nodes() is the first of the fabric.
  VertexId node_begin(int node) const { return node_begin_[static_cast<std::size_t>(node)]; }
  /// Which node each rank runs on. Nodes without ranks do not count there.
  const Placement& placement() const { return *placement_; }

  /// Directed links that leave `v`.
  std::span<const LinkId> leaving(VertexId v) const;
  LinkId link_end() const { return 2 * static_cast<LinkId>(parts_.links.size()); }
  static LinkId reverse(LinkId id) { return id ^ 1; }
  VertexId from(LinkId id) const { return id % 2 == 0 ? link(id).a : link(id).b; }
  VertexId to(LinkId id) const { return id % 2 == 0 ? link(id).b : link(id).a; }
  double bandwidth_Bps(LinkId id) const { return link(id).bandwidth_Bps[id % 2 == 0 ? 0 : 1]; }

  /// "a--b" with the ids of its ends, or the name it was given.
  std::string link_name(LinkId id) const;
  std::optional<VertexId> FindVertex(std::string_view id) const;  ///< Linear time.
  const TopologyParts& parts() const { return parts_; }

  bool operator==(const Topology& other) const;

 private:
  Topology() = default;
  void Order();
  Status Index();
  int NodesPerSwitch(const Placement& placement) const;
  Status CheckConnected() const;

  TopologyParts parts_;
  std::vector<VertexId> rank_vertex_;
  std::vector<VertexId> node_vertex_;
  std::vector<VertexId> node_begin_;
  std::vector<std::int32_t> leaving_begin_;  ///< By vertex, in leaving_.
  std::vector<LinkId> leaving_;
  std::optional<Placement> placement_;
};

}  // namespace tidegate
