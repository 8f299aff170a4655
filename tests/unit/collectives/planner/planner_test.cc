#include "collectives/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/topology_json.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kMega = std::uint64_t{1} << 20;

std::string Chosen(Planner& planner, const PlanRequest& request) {
  const Result<const Decision*> decision = planner.Decide(request);
  return decision.ok() ? decision.value()->algorithm->name : decision.status().message();
}

TEST(PlannerTest, OneNodeOfProcessorsReadsDirectly) {
  const Topology node = FakeCluster(1, 4);
  PlannerOptions options;
  options.rates = {.core_Bps = 10e9, .memory_Bps = 40e9};
  Planner planner = Planner::Make(node, options).value();
  EXPECT_EQ(Chosen(planner, {Collective::kAllGather, 64 * kMega}), "direct");
  EXPECT_EQ(Chosen(planner, {Collective::kReduceScatter, 64 * kMega}), "direct");
}

TEST(PlannerTest, BetweenNodesLargeTensorsGoColumnFirst) {
  const Topology cluster = FakeCluster(4, 4);
  Planner planner = Planner::Make(cluster).value();
  for (const Collective collective :
       {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce})
    EXPECT_THAT(Chosen(planner, {collective, 64 * kMega}), HasSubstr("column_"));
}

/// Four of the nodes of the rail-optimised fixture: a NIC for each rank.
Topology FourNodesOfRails() {
  std::ifstream file(TIDEGATE_SOURCE_DIR "/tests/data/topology/cluster_2048_rail_optimised.json");
  std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string nodes = "\"count\": 2048";
  text.replace(text.find(nodes), nodes.size(), "\"count\": 4");
  return ParseTopology(text).value();
}

TEST(PlannerTest, LongTensorsOfARootTakeAllNicsOfItsNode) {
  const Topology cluster = FourNodesOfRails();
  Planner planner = Planner::Make(cluster).value();
  for (const Collective collective :
       {Collective::kBroadcast, Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    const Decision& decision = *planner.Decide({collective, 16 * kMega, 3}).value();
    EXPECT_THAT(decision.algorithm->name, HasSubstr("column")) << NameOf(collective);
    const NamedAlgorithm* other = FindAlgorithm(collective, "tree");
    if (other == nullptr) other = FindAlgorithm(collective, "direct");
    EXPECT_GT(planner.Price(*other, 16 * kMega, 3).value(),
              2 * planner.Price(*decision.algorithm, 16 * kMega, 3).value())
        << NameOf(collective);
  }
}

TEST(PlannerTest, ShortAllReducesBetweenNodesTakeOneLatency) {
  const Topology pair = FakeCluster(2, 1);
  Planner of_pair = Planner::Make(pair).value();
  EXPECT_EQ(Chosen(of_pair, {Collective::kAllReduce, 1000}), "one_shot");
  const Topology cluster = FakeCluster(8, 8, {.rails = 8});
  Planner planner = Planner::Make(cluster).value();
  for (const std::uint64_t bytes : {1000, 16000}) {
    EXPECT_EQ(Chosen(planner, {Collective::kAllReduce, bytes}), "column_one_shot");
    const auto price = [&](const char* name) {
      return planner.Price(*FindAlgorithm(Collective::kAllReduce, name), bytes).value();
    };
    EXPECT_LT(price("column_one_shot") * 1.5, price("column_pairwise")) << bytes;
  }
  // Whole sums are too many bytes where tensors are long.
  EXPECT_EQ(Chosen(planner, {Collective::kAllReduce, 16 * kMega}).find("one_shot"),
            std::string::npos);
}

/// Most of a round's bytes stay below a switch.
TEST(PlannerTest, ThinSpinesAreForRecursiveDoubling) {
  const Topology cluster = FakeCluster(4, 4,
                                       {.inter_latency_s = 3e-6,
                                        .fabric = FabricKind::kFatTree,
                                        .nodes_per_leaf = 2,
                                        .oversubscription = 4,
                                        .spine_latency_s = 20e-6});
  Planner planner = Planner::Make(cluster).value();
  EXPECT_EQ(Chosen(planner, {Collective::kAllReduce, 100000}), "column_doubling");
}

TEST(PlannerTest, CalibrationMovesTheChoiceButNeverTheOrderOfAReduction) {
  FakeClusterOptions slow_wire;
  slow_wire.nic_bandwidth_Bps = 1e8;
  slow_wire.inter_latency_s = 1e-3;
  const std::vector<int> ranks = {4, 4, 4, 4};
  const Topology declared = FakeCluster(4, 4);
  const Topology calibrated = MakeFakeCluster(ranks, slow_wire).value();
  Planner by_declared = Planner::Make(declared).value();
  Planner by_measured = Planner::Make(calibrated).value();
  Planner both = Planner::Make(declared, {.calibrated = &calibrated}).value();
  int gathers_moved = 0;
  int reductions_that_would_move = 0;
  for (std::uint64_t bytes = 256; bytes <= 64 * kMega; bytes *= 2) {
    const PlanRequest gather{Collective::kAllGather, bytes};
    EXPECT_EQ(Chosen(both, gather), Chosen(by_measured, gather));
    gathers_moved += Chosen(both, gather) != Chosen(by_declared, gather) ? 1 : 0;
    const PlanRequest scatter{Collective::kReduceScatter, bytes};
    EXPECT_EQ(Chosen(both, scatter), Chosen(by_declared, scatter)) << bytes;
    reductions_that_would_move += Chosen(by_measured, scatter) != Chosen(by_declared, scatter);
  }
  // Or nothing would have been shown.
  EXPECT_GT(gathers_moved, 0);
  EXPECT_GT(reductions_that_would_move, 0);
}

TEST(PlannerTest, ACalibrationOfAnotherPlacementIsRefused) {
  const Topology declared = FakeCluster(2, 2);
  const Topology other = FakeCluster(1, 4);
  EXPECT_THAT(Planner::Make(declared, {.calibrated = &other}).status().message(),
              HasSubstr("places its ranks otherwise"));
}

TEST(PlannerTest, CandidatesAreSortedAndTheReasonIsGiven) {
  const Topology cluster = FakeCluster(2, 4);
  Planner planner = Planner::Make(cluster).value();
  const PlanRequest request{Collective::kAllGather, 16 * kMega};
  const Decision& decision = *planner.Decide(request).value();
  ASSERT_GT(decision.candidates.size(), 5u);
  double chosen = 0;
  for (const Candidate& candidate : decision.candidates)
    if (candidate.algorithm == decision.algorithm) chosen = candidate.seconds;
  EXPECT_LE(chosen, 1.02 * decision.candidates.front().seconds);
  for (std::size_t i = 1; i < decision.candidates.size(); ++i)
    EXPECT_LE(decision.candidates[i - 1].seconds, decision.candidates[i].seconds);
  EXPECT_GT(decision.bound.seconds, 0);
  EXPECT_LE(decision.bound.seconds, decision.candidates.front().seconds);
  const std::string text = Explain(decision, request);
  EXPECT_THAT(text, HasSubstr("candidates, "));
  EXPECT_THAT(text, HasSubstr("% of the bound"));
  EXPECT_THAT(text, HasSubstr("<- chosen"));
}

TEST(PlannerTest, AForcedAlgorithmIsTakenAndSaid) {
  const Topology cluster = FakeCluster(2, 2);
  PlannerOptions options;
  options.forced = {{Collective::kAllGather, "ring"}};
  Planner planner = Planner::Make(cluster, options).value();
  const Decision& decision = *planner.Decide({Collective::kAllGather, kMega}).value();
  EXPECT_EQ(decision.algorithm->name, "ring");
  EXPECT_THAT(decision.reason, HasSubstr("forced by TIDEGATE_ALGO"));
  options.forced = {{Collective::kAllGather, "column_recursive_doubling"}};
  EXPECT_FALSE(Planner::Make(FakeCluster(1, 2), options).ok());
}

TEST(PlannerTest, OnlyTheForcedAlgorithmIsPriced) {
  const Topology cluster = FakeCluster(2, 4);
  PlannerOptions options;
  options.forced = {{Collective::kAllGather, "ring"}};
  Planner planner = Planner::Make(cluster, options).value();
  const Decision& forced = *planner.Decide({Collective::kAllGather, kMega}).value();
  ASSERT_EQ(forced.candidates.size(), 1u);
  const Result<double> price = planner.Price(*forced.algorithm, forced.priced_bytes);
  EXPECT_EQ(forced.candidates.front().seconds, price.value());
  EXPECT_GT(planner.Decide({Collective::kReduceScatter, kMega}).value()->candidates.size(), 5u);
}

TEST(PlannerTest, WhatCannotBePricedRunsUnpriced) {
  // Each rank of a tree does something else, and 2,048 are too many to simulate one by one.
  const Topology cluster = FakeCluster(256, 8);
  const PlanRequest request{Collective::kBroadcast, kMega};
  PlannerOptions options;
  for (const bool is_forced : {true, false}) {
    options.forced.clear();
    if (is_forced) options.forced = {{Collective::kBroadcast, "tree"}};
    Planner planner = Planner::Make(cluster, options).value();
    const Result<const Decision*> decision = planner.Decide(request);
    ASSERT_TRUE(decision.ok()) << decision.status().message();
    EXPECT_EQ(decision.value()->algorithm->name, "tree");
    EXPECT_THAT(decision.value()->reason,
                HasSubstr(is_forced ? "forced by TIDEGATE_ALGO, not priced: not alike on all nodes"
                                    : "the simplest: none was priced"));
    EXPECT_THAT(Explain(*decision.value(), request), HasSubstr("not priced  <- chosen"));
  }
}

TEST(PlannerTest, AForcedAlgorithmThatTheStageIsTooSmallForIsAnError) {
  const Topology cluster = FakeCluster(4, 8);
  PlannerOptions options;
  options.slot_bytes = 1024;
  options.forced = {{Collective::kReduceScatter, "leader_ring"}};
  Planner planner = Planner::Make(cluster, options).value();
  const Result<const Decision*> decision = planner.Decide({Collective::kReduceScatter, kMega});
  ASSERT_FALSE(decision.ok());
  EXPECT_EQ(decision.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(decision.status().message(),
              HasSubstr("\"leader_ring\" of reduce_scatter cannot be run here: needs a stage of"));
  EXPECT_THAT(decision.status().message(), HasSubstr("TIDEGATE_STAGE_BYTES"));
}

TEST(PlannerTest, WhatNeedsMoreProgressWordsThanThereAreIsNotChosen) {
  const Topology cluster = FakeCluster(1, 16);
  PlannerOptions options;
  options.most_marks = 8;
  Planner planner = Planner::Make(cluster, options).value();
  const Decision& decision = *planner.Decide({Collective::kAllGather, kMega}).value();
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.algorithm->name != "ring") continue;
    EXPECT_EQ(candidate.excluded, "needs 30 progress words, and has 8");
  }
  options.forced = {{Collective::kAllGather, "ring"}};
  Planner forced = Planner::Make(cluster, options).value();
  EXPECT_THAT(forced.Decide({Collective::kAllGather, kMega}).status().message(),
              HasSubstr("\"ring\" of all_gather cannot be run here: needs 30 progress words"));
}

TEST(PlannerTest, WhatMustBeExactSetsAForcedAlgorithmOfSeveralPassesAside) {
  const Topology cluster = FakeCluster(4, 2);
  PlannerOptions options;
  options.forced = {{Collective::kReduceScatter, "ring"}};
  Planner planner = Planner::Make(cluster, options).value();
  const PlanRequest request{
      .collective = Collective::kReduceScatter, .bytes = kMega, .in_one_pass = true};
  const Decision& decision = *planner.Decide(request).value();
  EXPECT_EQ(decision.algorithm->name, "direct");
  EXPECT_THAT(decision.reason, HasSubstr("\"ring\" of TIDEGATE_ALGO is set aside: it reduces in "
                                         "several passes"));
  // One that does reduce in one pass is taken for both.
  options.forced = {{Collective::kReduceScatter, "direct"}};
  Planner direct = Planner::Make(cluster, options).value();
  EXPECT_THAT(direct.Decide(request).value()->reason, HasSubstr("forced by TIDEGATE_ALGO"));
}

TEST(PlannerTest, WhatNeedsEqualBlocksIsTakenOnlyWhereAllAreKnownToBeEqual) {
  const Topology cluster = FourNodesOfRails();
  const PlanRequest even{.collective = Collective::kAllToAll, .bytes = 16 * kMega};
  PlanRequest uneven = even;
  uneven.uneven = true;
  PlannerOptions options;
  const int size_class = Planner::SizeClass(even.bytes);
  options.measured[{Collective::kAllToAll, "column", size_class}] = 1e-9;
  Planner planner = Planner::Make(cluster, options).value();
  EXPECT_EQ(Chosen(planner, even), "column");
  EXPECT_EQ(Chosen(planner, uneven), "pairwise");
  EXPECT_THAT(Explain(*planner.Decide(uneven).value(), uneven),
              HasSubstr("excluded: needs blocks of one size"));
  EXPECT_EQ(Chosen(planner, even), "column");
  options.forced = {{Collective::kAllToAll, "column"}};
  Planner forced = Planner::Make(cluster, options).value();
  EXPECT_THAT(forced.Decide(even).value()->reason, HasSubstr("forced by TIDEGATE_ALGO"));
  EXPECT_EQ(Chosen(forced, uneven), "pairwise");
  EXPECT_THAT(
      forced.Decide(uneven).value()->reason,
      HasSubstr("\"column\" of TIDEGATE_ALGO is set aside: it needs blocks of one size, and "
                "those of this call may differ"));
}

TEST(PlannerTest, MeasurementChoosesOnlyAmongPlansOfTheSameOrder) {
  const Topology cluster = FakeCluster(4, 2);
  const PlanRequest request{Collective::kReduceScatter, kMega};
  const int size_class = Planner::SizeClass(request.bytes);
  PlannerOptions options;
  Planner plain = Planner::Make(cluster, options).value();
  const std::string canonical = Chosen(plain, request);
  ASSERT_NE(canonical, "direct");
  // However fast the others may look on the clock: their bits would differ.
  for (const NamedAlgorithm& algorithm : AllAlgorithms())
    options.measured[{algorithm.collective, algorithm.name, size_class}] =
        algorithm.name == canonical ? 1.0 : 1e-9;
  Planner measured = Planner::Make(cluster, options).value();
  EXPECT_EQ(Chosen(measured, request), canonical);
  // An all-gather has no order.
  EXPECT_NE(Chosen(measured, {Collective::kAllGather, kMega}), canonical);
}

TEST(PlannerTest, WhatMustBeExactIsReducedInOnePass) {
  const Topology cluster = FakeCluster(4, 2);
  Planner planner = Planner::Make(cluster).value();
  PlanRequest request{Collective::kReduceScatter, kMega};
  request.in_one_pass = true;
  EXPECT_EQ(Chosen(planner, request), "direct");
}

/// All that is said of a choice: what else there was and how long that takes, what no plan beats,
/// and how near the choice comes. `least_priced`: candidates that must have a price.
void ExpectExplained(const Decision& decision, const PlanRequest& request, const std::string& what,
                     int least_priced = 2) {
  const std::string text = Explain(decision, request);
  EXPECT_THAT(decision.reason, HasSubstr("% of the bound")) << what;
  EXPECT_THAT(text, HasSubstr(decision.reason)) << what;
  EXPECT_THAT(text, HasSubstr("<- chosen")) << what;
  EXPECT_GT(decision.bound.seconds, 0) << what;
  EXPECT_THAT(text, HasSubstr(decision.bound.cut)) << what;
  EXPECT_GE(decision.candidates.size(), 2U) << what;
  int priced = 0;
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.seconds <= 0) continue;
    ++priced;
    char line[96];
    std::snprintf(line, sizeof line, "%12.3f us  %5.1f%% of the bound", candidate.seconds * 1e6,
                  100 * decision.bound.seconds / candidate.seconds);
    EXPECT_THAT(text, HasSubstr(candidate.algorithm->name)) << what;
    EXPECT_THAT(text, HasSubstr(line)) << what << " " << candidate.algorithm->name;
    // Prices of long messages are continued in a straight line from shorter ones.
    EXPECT_GE(candidate.seconds, 0.999 * decision.bound.seconds)
        << what << " " << candidate.algorithm->name;
  }
  EXPECT_GE(priced, least_priced) << what;
}

/// What it decides for `collective`, short and long, is explained.
void ExpectExplainsBothSizes(Planner& planner, Collective collective, const std::string& machine,
                             int least_priced = 2) {
  for (const std::uint64_t bytes : {std::uint64_t{64} << 10, 64 * kMega}) {
    const PlanRequest request{collective, bytes};
    const std::string what =
        machine + " " + std::string(NameOf(collective)) + " of " + std::to_string(bytes);
    const Result<const Decision*> decision = planner.Decide(request);
    ASSERT_TRUE(decision.ok()) << what << ": " << decision.status().message();
    ExpectExplained(*decision.value(), request, what, least_priced);
  }
}

/// Above so many ranks no reduction fits the stage that there is by default.
constexpr int kMostThatReduceByDefault = 1024;

TEST(PlannerTest, ExplainsItsChoiceForEachFixture) {
  int fixtures = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TIDEGATE_SOURCE_DIR "/tests/data/topology")) {
    const Result<Topology> topology = LoadTopology(entry.path().string());
    ASSERT_TRUE(topology.ok()) << topology.status().message();
    const std::string machine = entry.path().stem().string();
    ++fixtures;
    // Minutes of simulation, of the same code as with fewer ranks.
    if (testing::kIsSlowBuild && !testing::TestsAll() && topology.value().ranks() > 64) continue;
    Planner planner = Planner::Make(topology.value()).value();
    for (const Collective collective :
         {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce}) {
      if (!Reduces(collective) || topology.value().ranks() <= kMostThatReduceByDefault) {
        ExpectExplainsBothSizes(planner, collective, machine);
        continue;
      }
      // No price can be compared, and it is said what that takes.
      const PlanRequest request{collective, 64 * kMega};
      const Result<const Decision*> decision = planner.Decide(request);
      ASSERT_TRUE(decision.ok()) << machine << ": " << decision.status().message();
      EXPECT_THAT(decision.value()->reason, HasSubstr("none was priced")) << machine;
      EXPECT_THAT(Explain(*decision.value(), request),
                  AllOf(HasSubstr("MiB, and has 2 MiB (TIDEGATE_STAGE_BYTES)"),
                        Not(HasSubstr("at least 2 MiB, and has 2 MiB"))))
          << machine;
    }
  }
  EXPECT_GE(fixtures, 8);
}

TEST(PlannerTest, ExplainsReductionsOf16384RanksWithALargerStage) {
  if (!testing::TestsAll()) GTEST_SKIP() << "two minutes of simulation: with TIDEGATE_TEST_ALL=1";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ten times slower, and the same code as with fewer ranks";
#endif
  int fixtures = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TIDEGATE_SOURCE_DIR "/tests/data/topology")) {
    const Result<Topology> topology = LoadTopology(entry.path().string());
    ASSERT_TRUE(topology.ok()) << topology.status().message();
    if (topology.value().ranks() <= kMostThatReduceByDefault) continue;
    PlannerOptions options;
    options.slot_bytes = 4 * kMega;  // A stage of 16 MiB, which those by columns fit.
    Planner planner = Planner::Make(topology.value(), options).value();
    // Of long all-reduces all but one take more steps than are priced.
    for (const Collective collective : {Collective::kReduceScatter, Collective::kAllReduce})
      ExpectExplainsBothSizes(planner, collective, entry.path().stem().string(), 1);
    ++fixtures;
  }
  EXPECT_EQ(fixtures, 2);
}

TEST(PlannerTest, LookingUpWhatIsDecidedTakesNoSimulation) {
  const Topology cluster = FakeCluster(2, 2);
  Planner planner = Planner::Make(cluster).value();
  const PlanRequest request{Collective::kAllGather, kMega};
  ASSERT_TRUE(planner.Decide(request).ok());
  constexpr int kLookups = 10000;
  // The least of several rounds: what else runs on the machine only makes them longer.
  double lookup_us = 1e9;
  for (int round = 0; round < 10; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kLookups; ++i) ASSERT_TRUE(planner.Decide(request).ok());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    lookup_us = std::min(lookup_us, took.count() / kLookups);
  }
  RecordProperty("lookup_us", std::to_string(lookup_us));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(lookup_us, 2);
#endif
}

TEST(PlannerTest, DecisionsAreKeptBySizeClass) {
  const Topology cluster = FakeCluster(2, 2);
  Planner planner = Planner::Make(cluster).value();
  const Decision* first = planner.Decide({Collective::kAllGather, kMega}).value();
  EXPECT_EQ(planner.Decide({Collective::kAllGather, 2 * kMega - 1}).value(), first);
  EXPECT_NE(planner.Decide({Collective::kAllGather, 2 * kMega}).value(), first);
  EXPECT_FALSE(planner.Decide({Collective::kBroadcast, 1, 4}).ok());
}

TEST(PlannerTest, WhoWaitsIsToldWhatIsPricedNext) {
  const Topology cluster = FakeCluster(2, 2);
  Planner planner = Planner::Make(cluster).value();
  std::vector<std::string> told;
  const auto tell = [&](const NamedAlgorithm& algorithm) { told.push_back(algorithm.name); };
  const PlanRequest request{Collective::kAllGather, kMega};
  const Decision& decision = *planner.Decide(request, tell).value();
  std::vector<std::string> candidates;
  for (const Candidate& one : decision.candidates) candidates.push_back(one.algorithm->name);
  EXPECT_THAT(told, ::testing::UnorderedElementsAreArray(candidates));
  told.clear();
  EXPECT_EQ(planner.Decide(request, tell).value(), &decision);
  EXPECT_THAT(told, ::testing::IsEmpty());
  PlannerOptions forced;
  forced.forced = {{Collective::kAllGather, "ring"}};
  ASSERT_TRUE(Planner::Make(cluster, forced).value().Decide(request, tell).ok());
  EXPECT_THAT(told, ::testing::ElementsAre("ring"));
}

TEST(PlannerTest, WhoIsToldMayEndIt) {
  const Topology cluster = FakeCluster(2, 2);
  Planner planner = Planner::Make(cluster).value();
  const PlanRequest request{Collective::kAllGather, kMega};
  const auto end = [](const NamedAlgorithm&) { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(static_cast<void>(planner.Decide(request, end)), std::runtime_error);
  Planner other = Planner::Make(cluster).value();
  EXPECT_EQ(Chosen(planner, request), Chosen(other, request));
}

}  // namespace
}  // namespace tidegate
