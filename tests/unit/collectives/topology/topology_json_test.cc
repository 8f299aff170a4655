#include "collectives/topology/topology_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/routes.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A description of `nodes` with what `rest` adds to the document.
std::string Document(const std::string& nodes, const std::string& rest = "") {
  return R"({"tidegate_topology": 1, "nodes": )" + nodes + rest + "}";
}

const char kPair[] = R"([{"id": "n", "count": 2,
  "vertices": [
    {"id": "rank", "kind": "rank", "link": {"path": "LOC", "latency_s": 5e-7, "bandwidth_Bps": 1e10}},
    {"id": "nic", "kind": "nic", "bandwidth_Bps": 1e9}],
  "links": [{"from": "node", "to": "nic", "path": "PIX", "latency_s": 0, "bandwidth_Bps": 2e9}]}])";
const char kSwitch[] = R"(, "fabric": {"kind": "single_switch", "port_latency_s": 2e-6})";

std::string ErrorOf(const std::string& text, const TopologyReadOptions& options = {}) {
  const Result<Topology> topology = ParseTopology(text, options);
  if (topology.ok()) return "accepted";
  EXPECT_EQ(topology.status().code(), StatusCode::kInvalidArgument);
  return topology.status().message();
}

Topology Read(const std::string& text, const TopologyReadOptions& options = {}) {
  Result<Topology> topology = ParseTopology(text, options);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  return topology.ok() ? std::move(topology).value() : FakeCluster(1, 1);
}

/// The document of kPair with `from` replaced by `to`.
std::string With(const std::string& from, const std::string& to) {
  std::string text = Document(kPair, kSwitch);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TopologyJsonTest, ATemplateExpandsToItsCount) {
  const Topology topology = Read(Document(kPair, kSwitch));
  EXPECT_EQ(topology.nodes(), 2);
  EXPECT_EQ(topology.ranks(), 2);
  EXPECT_TRUE(topology.FindVertex("n1/rank").has_value());
  const Route route = Router(topology).Find(0, 1);
  EXPECT_DOUBLE_EQ(route.latency_s, 5e-6);
  EXPECT_EQ(route.bandwidth_Bps, 1e9);
}

TEST(TopologyJsonTest, TheExampleOfTheDocumentationIsRight) {
  const std::string text =
      ReadTextFile(TIDEGATE_SOURCE_DIR "/docs/topology.md", std::size_t{1} << 20).value();
  const std::size_t begin = text.find("```json\n") + 8;
  const Topology topology = Read(text.substr(begin, text.find("```", begin) - begin));
  EXPECT_EQ(topology.ranks(), 4);
  Router router(topology);
  EXPECT_EQ(router.Find(0, 1).path, PathClass::kNvl);
  EXPECT_EQ(router.Find(0, 2).rail, 0);
  EXPECT_EQ(router.Find(0, 2).bandwidth_Bps, 25e9);
  EXPECT_EQ(router.Find(1, 3).bandwidth_Bps, 12.5e9);
  EXPECT_EQ(
      ErrorOf(With("2e9", "-1")),
      "$.nodes[0].links[0].bandwidth_Bps: a bandwidth must be positive, from 1 to 1e18 byte/s, "
      "not -1");
  EXPECT_THAT(text, HasSubstr(ErrorOf(With("2e9", "-1"))));
}

TEST(TopologyJsonTest, WhatIsWrittenReadsBackEqual) {
  for (const FabricKind kind : {FabricKind::kSingleSwitch, FabricKind::kFatTree,
                                FabricKind::kRailOptimised, FabricKind::kRailOnly}) {
    const Topology topology =
        FakeCluster(5, 3, {.rails = 2, .fabric = kind, .nodes_per_leaf = 2, .oversubscription = 2});
    EXPECT_EQ(Read(FormatTopology(topology)), topology) << FormatTopology(topology);
  }
  const Topology uneven = MakeFakeCluster(std::vector{3, 1, 1}).value();
  EXPECT_EQ(Read(FormatTopology(uneven)), uneven);
  const Topology dealt = Renumber(uneven, RoundRobinNumbers(uneven)).value();
  EXPECT_NE(dealt, uneven);
  EXPECT_EQ(Read(FormatTopology(dealt)), dealt);
}

TEST(TopologyJsonTest, EqualNodesAreWrittenOnce) {
  const std::string two = FormatTopology(FakeCluster(2, 8));
  const std::string many = FormatTopology(FakeCluster(999, 8));
  EXPECT_THAT(many, HasSubstr("{\"id\": \"node\", \"count\": 999,"));
  EXPECT_LT(many.size(), two.size() + 999 * 130);  // the links to the switch
}

TEST(TopologyJsonTest, FormsWithCountsAndListsAreShort) {
  const Topology topology = Read(Document(R"([{"id": "box", "vertices": [
    {"id": "numa", "kind": "numa", "count": 2, "number": 0},
    {"id": "core", "kind": "core", "count": 4, "number": 8, "in": "numa1",
     "link": {"path": "LOC", "latency_s": 1e-8, "bandwidth_Bps": 1e10, "bandwidth_back_Bps": 2e10}},
    {"id": "rank", "kind": "rank", "count": 2,
     "link": {"to": "core0", "path": "LOC", "latency_s": 0, "bandwidth_Bps": 1e11}}],
   "links": [{"from": ["numa0", "node"], "to": ["numa1"], "path": "SYS", "latency_s": 1e-7,
              "bandwidth_Bps": 4e10, "shared": true}]}])"));
  EXPECT_EQ(topology.nodes(), 1);
  const Vertex& core = topology.vertex(*topology.FindVertex("box/core3"));
  EXPECT_EQ(core.number, 11);
  EXPECT_EQ(topology.vertex(core.parent).id, "box/numa1");
  EXPECT_EQ(topology.links().size(), 8U);
  EXPECT_EQ(topology.link_name(0), "box/core0--box/numa1");
  EXPECT_EQ(topology.bandwidth_Bps(1), 2e10);
  EXPECT_TRUE(topology.links().back().shared);
  EXPECT_EQ(Read(FormatTopology(topology)), topology);
}

TEST(TopologyJsonTest, PlacementNumbersTheRanks) {
  const std::string nodes =
      R"([{"id": "n", "count": 2, "vertices": [{"id": "rank", "kind": "rank", "count": 2,
        "link": {"path": "LOC", "latency_s": 0, "bandwidth_Bps": 1}}]}],
        "links": [{"from": "n0", "to": "n1", "path": "NET", "latency_s": 0, "bandwidth_Bps": 1}])";
  const auto nodes_of = [&](const std::string& placement) {
    const Topology topology = Read(Document(nodes, placement));
    std::vector<int> result;
    for (int rank = 0; rank < topology.ranks(); ++rank) result.push_back(topology.node_of(rank));
    return result;
  };
  EXPECT_EQ(nodes_of(""), (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(nodes_of(R"(, "placement": "block")"), (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(nodes_of(R"(, "placement": "round_robin")"), (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(nodes_of(R"(, "placement": [3, 1, 2, 0])"), (std::vector{1, 0, 1, 0}));
  EXPECT_THAT(ErrorOf(Document(nodes, R"(, "placement": [0, 1, 2, 2])")),
              StartsWith("$.placement: "));
  EXPECT_THAT(ErrorOf(Document(nodes, R"(, "placement": [0])")),
              HasSubstr("1 numbers for 4 ranks"));
  EXPECT_THAT(ErrorOf(Document(nodes, R"(, "placement": "far")")), HasSubstr("block, round_robin"));
}

TEST(TopologyJsonTest, APartialFileAmendsWhatWasDiscovered) {
  const Topology discovered = Renumber(FakeCluster(2, 1), std::vector{1, 0}).value();
  const Topology topology = Read(R"({"tidegate_topology": 1, "partial": true,
    "overrides": {
      "vertices": [{"id": "node0/nic0", "bandwidth_Bps": 3e9, "rail": 7}],
      "links": [{"id": "node1/nic0--fabric/switch", "bandwidth_Bps": 5e9},
                {"id": "node0/rank0--node0", "bandwidth_back_Bps": 2e9, "latency_s": 1}]},
    "vertices": [{"id": "node1/extra", "kind": "rank", "in": "node1",
      "link": {"path": "LOC", "latency_s": 0, "bandwidth_Bps": 1e9}}]})",
                                 {.discovered = &discovered});
  EXPECT_EQ(topology.ranks(), 3);
  EXPECT_EQ(topology.vertex(topology.rank_vertex(2)).id, "node1/extra");
  EXPECT_EQ(topology.node_of(0), 1);  // the numbers that were there stay
  const Vertex& nic = topology.vertex(*topology.FindVertex("node0/nic0"));
  EXPECT_EQ(nic.bandwidth_Bps, 3e9);
  EXPECT_EQ(nic.rail, 7);
  for (LinkId id = 0; id < topology.link_end(); id += 2) {
    if (topology.link_name(id) == "node1/nic0--fabric/switch") {
      EXPECT_EQ(topology.bandwidth_Bps(id), 5e9);
      EXPECT_EQ(topology.bandwidth_Bps(id + 1), 5e9);
    } else if (topology.link_name(id) == "node0/rank0--node0") {
      EXPECT_EQ(topology.bandwidth_Bps(id), 150e9);
      EXPECT_EQ(topology.bandwidth_Bps(id + 1), 2e9);
      EXPECT_EQ(topology.link(id).latency_s, 1);
    }
  }
}

TEST(TopologyJsonTest, APartialFileNeedsADiscoveredMachine) {
  EXPECT_THAT(ErrorOf(R"({"tidegate_topology": 1, "partial": true})"), StartsWith("$.partial: "));
}

TEST(TopologyJsonTest, AFullFileReplacesWhatWasDiscovered) {
  const Topology discovered = FakeCluster(4, 4);
  EXPECT_EQ(Read(Document(kPair, kSwitch), {.discovered = &discovered}).ranks(), 2);
}

TEST(TopologyJsonTest, MalformedTextAndDeepNestingAreNamedByLine) {
  EXPECT_THAT(ErrorOf("{\n\"tidegate_topology\": 1,,}"), StartsWith("line 2, column 24: "));
  EXPECT_THAT(ErrorOf(std::string(100000, '[')), HasSubstr("inside each other"));
  EXPECT_THAT(ErrorOf("[]"), StartsWith("$: an object is wanted"));
}

TEST(TopologyJsonTest, TheVersionMustBeKnown) {
  EXPECT_THAT(ErrorOf(R"({"nodes": []})"), HasSubstr("\"tidegate_topology\" is missing"));
  EXPECT_THAT(ErrorOf(R"({"tidegate_topology": 2, "nodes": []})"), HasSubstr("version 2"));
  EXPECT_THAT(ErrorOf(R"({"tidegate_topology": "1"})"), HasSubstr("a whole number"));
}

TEST(TopologyJsonTest, KeysMustBeKnownAndThere) {
  EXPECT_THAT(ErrorOf(With("\"kind\": \"nic\"", "\"kind\": \"nic\", \"speed\": 1")),
              HasSubstr("$.nodes[0].vertices[1]: unknown key \"speed\"; known are id, kind"));
  EXPECT_THAT(ErrorOf(With("\"latency_s\": 0, ", "")),
              HasSubstr("$.nodes[0].links[0]: the key \"latency_s\" is missing"));
  EXPECT_THAT(ErrorOf(With("\"path\": \"PIX\", ", "")), HasSubstr("the key \"path\" is missing"));
  EXPECT_THAT(ErrorOf(With(", \"bandwidth_Bps\": 2e9", "")),
              HasSubstr("the key \"bandwidth_Bps\" is missing"));
  EXPECT_EQ(ErrorOf(With("\"kind\": \"nic\"", "\"kind\": \"nic\", \"comment\": \"fast\"")),
            "accepted");
}

TEST(TopologyJsonTest, BandwidthAndLatencyMustMakeSense) {
  for (const char* const bad : {"0", "-1", "-1e300"})
    EXPECT_THAT(ErrorOf(With("2e9", bad)),
                StartsWith("$.nodes[0].links[0].bandwidth_Bps: a bandwidth must be positive"));
  EXPECT_THAT(ErrorOf(With("2e9", "\"fast\"")), HasSubstr("a number is wanted"));
  EXPECT_THAT(ErrorOf(With("2e9", "null")), HasSubstr("a number is wanted"));
  EXPECT_THAT(ErrorOf(With("2e9", "1e999")), StartsWith("line "));
  EXPECT_THAT(ErrorOf(With("2e9", "NaN")), StartsWith("line "));
  EXPECT_THAT(ErrorOf(With("\"latency_s\": 0", "\"latency_s\": -1e-9")),
              StartsWith("$.nodes[0].links[0].latency_s: a latency must be zero or more"));
  EXPECT_THAT(ErrorOf(With("\"bandwidth_Bps\": 1e9", "\"bandwidth_Bps\": 0")),
              StartsWith("$.nodes[0].vertices[1].bandwidth_Bps: "));
  EXPECT_THAT(ErrorOf(Document(kPair, R"(, "fabric": {"kind": "fat_tree", "port_latency_s": 0,
                                            "oversubscription": 0.5})")),
              StartsWith("$.fabric: oversubscription is 0.5"));
}

TEST(TopologyJsonTest, IdsAreUniqueAndKnown) {
  EXPECT_THAT(ErrorOf(With("\"id\": \"nic\"", "\"id\": \"rank\"")),
              StartsWith("$.nodes[0].vertices[1].id: the id \"rank\" is taken"));
  EXPECT_THAT(ErrorOf(With("\"to\": \"nic\"", "\"to\": \"nix\"")),
              StartsWith("$.nodes[0].links[0].to: there is no vertex \"nix\""));
  EXPECT_THAT(ErrorOf(With("\"to\": \"nic\"", "\"to\": [\"nic\", \"nix\"]")),
              StartsWith("$.nodes[0].links[0].to[1]: "));
  EXPECT_THAT(ErrorOf(With("\"to\": \"nic\"", "\"to\": \"node\"")), HasSubstr("with itself"));
  EXPECT_THAT(ErrorOf(With("\"from\": \"node\"", "\"from\": [\"node\", \"node\"]")),
              HasSubstr("give one of them an \"id\""));
  EXPECT_THAT(ErrorOf(With("\"kind\": \"nic\"", "\"kind\": \"nick\"")),
              HasSubstr("there are numa, cache, core"));
  EXPECT_THAT(ErrorOf(With("\"path\": \"PIX\"", "\"path\": \"PXB\"")),
              HasSubstr("LOC, NVL, C2C, PIX, SYS, NET"));
  EXPECT_THAT(ErrorOf(Document(
                  kPair, std::string(kSwitch) + R"(, "overrides": {"links": [{"id": "n0--n1"}]})")),
              HasSubstr("there is no link \"n0--n1\" to override"));
  EXPECT_THAT(ErrorOf(Document(R"([{"id": "a"}, {"id": "a"}])")),
              HasSubstr("two vertices have the id \"a\""));
}

TEST(TopologyJsonTest, ContainmentMustNotBeCyclic) {
  EXPECT_THAT(ErrorOf(With("\"kind\": \"nic\"", "\"kind\": \"nic\", \"in\": \"nic\"")),
              HasSubstr("containment is cyclic: \"n0/nic\""));
  EXPECT_THAT(ErrorOf(With("{\"id\": \"nic\",", R"({"id": "a", "kind": "numa", "in": "b"},
                           {"id": "b", "kind": "numa", "in": "a"}, {"id": "nic",)")),
              HasSubstr("containment is cyclic"));
}

TEST(TopologyJsonTest, DisconnectedRanksAreRefused) {
  EXPECT_THAT(ErrorOf(Document(kPair)), HasSubstr("no chain of links joins rank 1 (\"n1/rank\")"));
}

TEST(TopologyJsonTest, ABillionRanksAreRefusedBeforeTheyAreMade) {
  EXPECT_THAT(
      ErrorOf(With("\"count\": 2", "\"count\": 1000000000")),
      StartsWith("$.nodes[0]: 1000000000 nodes of 1 ranks each are too many; at most 131072"));
  EXPECT_THAT(ErrorOf(With("\"kind\": \"rank\"", "\"kind\": \"rank\", \"count\": 1000000000")),
              StartsWith("$.nodes[0].vertices[0]: too many vertices"));
  EXPECT_THAT(ErrorOf(With("\"count\": 2", "\"count\": 99999999999999999999")),
              StartsWith("$.nodes[0].count: "));
  EXPECT_THAT(ErrorOf(With("\"count\": 2", "\"count\": 0")), StartsWith("$.nodes[0].count: "));
}

TEST(TopologyJsonTest, FilesAreReadAndReplaced) {
  const std::string path = ::testing::TempDir() + "/topology_json_test.json";
  const Topology topology = FakeCluster(2, 2);
  ASSERT_TRUE(DumpTopology(topology, path).ok());
  EXPECT_EQ(LoadTopology(path).value(), topology);
  std::ofstream(path) << "{}";
  EXPECT_THAT(LoadTopology(path).status().message(), StartsWith(path + ": $: the key"));
  EXPECT_THAT(LoadTopology(path, {.json = {.bytes = 1}}).status().message(),
              HasSubstr("more than"));
  EXPECT_THAT(DumpTopology(topology, "/no/such/folder/t.json").message(),
              HasSubstr("cannot write the topology to /no/such/folder/t.json"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tidegate
