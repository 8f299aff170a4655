#include "collectives/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace tidegate {
namespace {

using ::testing::HasSubstr;

Vertex Make(VertexKind kind, std::string id, VertexId parent = kNone, int number = kNone) {
  Vertex vertex;
  vertex.kind = kind;
  vertex.id = std::move(id);
  vertex.parent = parent;
  vertex.number = number;
  return vertex;
}

Link Join(VertexId a, VertexId b, double bandwidth = 1e9, double latency = 1e-6) {
  return {.a = a, .b = b, .latency_s = latency, .bandwidth_Bps = {bandwidth, bandwidth}};
}

/// Two nodes of one rank each, joined by a switch; the fabric comes first and nodes are mixed.
TopologyParts TwoNodes() {
  TopologyParts parts;
  parts.vertices = {Make(VertexKind::kSwitch, "switch"), Make(VertexKind::kNode, "a"),
                    Make(VertexKind::kNode, "b"), Make(VertexKind::kRank, "b/rank", 2, 0),
                    Make(VertexKind::kRank, "a/rank", 1, 1)};
  parts.links = {Join(1, 0), Join(0, 2), Join(3, 2), Join(4, 1)};
  return parts;
}

std::string ErrorOf(TopologyParts parts, const TopologyLimits& limits = {}) {
  const Result<Topology> topology = Topology::Make(std::move(parts), limits);
  if (topology.ok()) return "accepted";
  EXPECT_EQ(topology.status().code(), StatusCode::kInvalidArgument);
  return topology.status().message();
}

TEST(TopologyTest, NamesOfKindsAndPathsParseBack) {
  for (int kind = 0; kind < 8; ++kind)
    EXPECT_EQ(ParseVertexKind(VertexKindName(static_cast<VertexKind>(kind))),
              static_cast<VertexKind>(kind));
  for (int path = 0; path < 11; ++path)
    EXPECT_EQ(ParsePathClass(PathClassName(static_cast<PathClass>(path))),
              static_cast<PathClass>(path));
  EXPECT_EQ(ParsePathClass("pix"), std::nullopt);
}

TEST(TopologyTest, VerticesOfANodeAreConsecutiveAndTheFabricIsLast) {
  const Result<Topology> made = Topology::Make(TwoNodes());
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Topology& topology = made.value();
  std::vector<std::string> ids;
  for (const Vertex& vertex : topology.vertices()) ids.push_back(vertex.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"a", "a/rank", "b", "b/rank", "switch"}));
  EXPECT_EQ(topology.link_name(0), "a/rank--a");  // links of nodes go first, too
  EXPECT_EQ(topology.node_begin(1), 2);
  EXPECT_EQ(topology.node_begin(2), 4);
  EXPECT_EQ(topology.vertex(4).node, kNone);
}

TEST(TopologyTest, PlacementFollowsTheNumbersOfTheRanks) {
  const Topology topology = Topology::Make(TwoNodes()).value();
  EXPECT_EQ(topology.vertex(topology.rank_vertex(0)).id, "b/rank");
  EXPECT_EQ(topology.node_of(0), 1);
  EXPECT_EQ(topology.placement(), Placement::Block(2, 1));
}

TEST(TopologyTest, EachDirectionOfALinkHasItsBandwidth) {
  TopologyParts parts = TwoNodes();
  parts.links[0].bandwidth_Bps = {2e9, 3e9};
  const Topology topology = Topology::Make(parts).value();
  const VertexId a = *topology.FindVertex("a");
  for (const LinkId id : topology.leaving(a)) {
    if (topology.vertex(topology.to(id)).id != "switch") continue;
    EXPECT_EQ(topology.bandwidth_Bps(id), 2e9);
    EXPECT_EQ(topology.bandwidth_Bps(Topology::reverse(id)), 3e9);
    EXPECT_EQ(topology.from(Topology::reverse(id)), topology.to(id));
  }
}

TEST(TopologyTest, DuplicateIdsAreRefused) {
  TopologyParts parts = TwoNodes();
  parts.vertices[1].id = "b";
  EXPECT_THAT(ErrorOf(parts), HasSubstr("two vertices have the id \"b\""));
}

TEST(TopologyTest, CyclicContainmentIsRefused) {
  TopologyParts parts = TwoNodes();
  parts.vertices.push_back(Make(VertexKind::kNuma, "x", 6));
  parts.vertices.push_back(Make(VertexKind::kNuma, "y", 5));
  EXPECT_THAT(ErrorOf(parts), HasSubstr("containment is cyclic: \"x\""));
}

TEST(TopologyTest, OnlySwitchesLieOutsideNodes) {
  TopologyParts parts = TwoNodes();
  parts.vertices[4].parent = 0;
  EXPECT_THAT(ErrorOf(parts), HasSubstr("rank \"a/rank\" lies in no node"));
}

TEST(TopologyTest, RankNumbersAreAPermutation) {
  TopologyParts parts = TwoNodes();
  parts.vertices[4].number = 0;
  EXPECT_THAT(ErrorOf(parts), HasSubstr("has the number 0"));
  parts.vertices[4].number = 2;
  EXPECT_THAT(ErrorOf(parts), HasSubstr("\"a/rank\" has the number 2"));
}

TEST(TopologyTest, LinksNeedTwoEndsAndFigures) {
  const auto with = [](Link link) {
    TopologyParts parts = TwoNodes();
    parts.links.push_back(link);
    return ErrorOf(std::move(parts));
  };
  EXPECT_THAT(with(Join(0, 9)), HasSubstr("not there"));
  EXPECT_THAT(with(Join(-1, 0)), HasSubstr("not there"));
  EXPECT_THAT(with(Join(1, 1)), HasSubstr("joins a vertex with itself"));
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()})
    EXPECT_THAT(with(Join(1, 2, bad)), HasSubstr("link \"a--b\" has a bandwidth of "));
  EXPECT_THAT(with(Join(1, 2, 1e9, -1e-6)), HasSubstr("latency of -1e-06 s"));
}

TEST(TopologyTest, DisconnectedRanksAreNamed) {
  TopologyParts parts = TwoNodes();
  parts.links.pop_back();
  EXPECT_THAT(ErrorOf(parts), HasSubstr("joins rank 1 (\"a/rank\") with rank 0 (\"b/rank\")"));
}

TEST(TopologyTest, ThereIsARankAndANode) {
  TopologyParts parts;
  EXPECT_THAT(ErrorOf(parts), HasSubstr("without a node"));
  parts.vertices = {Make(VertexKind::kNode, "a")};
  EXPECT_THAT(ErrorOf(parts), HasSubstr("without ranks"));
}

TEST(TopologyTest, SizesAreLimited) {
  EXPECT_THAT(ErrorOf(TwoNodes(), {.ranks = 1}), HasSubstr("2 ranks; at most 1"));
  EXPECT_THAT(ErrorOf(TwoNodes(), {.vertices = 4}), HasSubstr("5 vertices; at most 4"));
  EXPECT_THAT(ErrorOf(TwoNodes(), {.links = 3}), HasSubstr("4 links; at most 3"));
}

}  // namespace
}  // namespace tidegate
