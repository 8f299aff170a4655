#include "collectives/planned_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "collectives/plan_basis.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/topology_json.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kSlotBytes = 1 << 19;

std::string BasisOf(const Topology& topology) {
  return FormatPlanBasis({.declared = {topology, {.core_Bps = 10e9, .memory_Bps = 40e9}}});
}

std::string Chosen(const PlanChoice& choice, const PlanRequest& request) {
  const Result<const Algorithm*> algorithm = choice.choose(request);
  if (!algorithm.ok()) return algorithm.status().message();
  return (*algorithm.value())({.rank = 0,
                               .ranks = choice.placement.ranks(),
                               .root = request.root,
                               .placement = &choice.placement})
      .name;
}

TEST(PlanBasisTest, IsReadBackAsWritten) {
  PlanBasis basis{.declared = {FakeCluster(2, 3), {.core_Bps = 3e9}}};
  for (int round = 0; round < 2; ++round) {
    const std::string text = FormatPlanBasis(basis);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const PlanBasis read = ParsePlanBasis(text).value();
    EXPECT_EQ(read.declared.topology, basis.declared.topology);
    EXPECT_EQ(read.declared.rates.core_Bps, 3e9);
    EXPECT_EQ(read.declared.rates.memory_Bps, LocalRates().memory_Bps);
    EXPECT_EQ(read.calibrated.has_value(), round == 1);
    EXPECT_EQ(FormatPlanBasis(read), text);
    EXPECT_EQ(read.measured, basis.measured);
    basis.calibrated = {FakeCluster(2, 3), {.memory_Bps = 7e9}};
    basis.measured = {{{Collective::kAllGather, "ring", 12}, 3e-5}};
  }
}

TEST(PlanBasisTest, WhatIsNoneIsRefusedWithItsPath) {
  const auto complaint = [](const std::string& text) {
    return ParsePlanBasis(text).status().message();
  };
  EXPECT_THAT(complaint(""), HasSubstr("line 1"));
  EXPECT_THAT(complaint("{}"), HasSubstr("tidegate_plan_basis"));
  EXPECT_THAT(complaint("{\"tidegate_plan_basis\": 1}"), HasSubstr("has no declared machine"));
  EXPECT_THAT(complaint("{\"tidegate_plan_basis\": 1, \"declared\": {}}"),
              HasSubstr("$.declared: has no topology"));
  const PlanBasis mixed{.declared = {FakeCluster(2, 3), {}},
                        .calibrated = MachineModel{FakeCluster(3, 2), {}}};
  EXPECT_THAT(complaint(FormatPlanBasis(mixed)), HasSubstr("$.calibrated: is another machine"));
}

TEST(PlanBasisTest, ThisMachineIsOneNodeOfAllRanks) {
  Config config;
  config.calibrate = false;
  const PlanBasis basis = MakePlanBasis(config, 5, {}).value();
  EXPECT_EQ(basis.declared.topology.placement(), Placement::OneNode(5));
  EXPECT_FALSE(basis.calibrated.has_value());
}

TEST(PlanBasisTest, CalibrationReplacesDeclaredRatesAndNothingElse) {
  Config config;
  const PlanBasis basis = MakePlanBasis(config, 2, {}).value();
  ASSERT_TRUE(basis.calibrated.has_value());
  EXPECT_EQ(basis.calibrated->topology.vertices().size(),
            basis.declared.topology.vertices().size());
  EXPECT_NE(basis.calibrated->rates.core_Bps, basis.declared.rates.core_Bps);
}

TEST(PlanBasisTest, WhatWasMeasuredForSoManyRanksIsUsed) {
  Config config;
  config.cache_dir = ::testing::TempDir() + "tidegate-measured";
  const MeasuredTable table = {{{Collective::kAllGather, "ring", 21}, 1e-6},
                               {{Collective::kAllGather, "direct", 21}, 2e-6}};
  const std::string path = KeepMeasured(config, 3, table).value();
  const PlanBasis basis = MakePlanBasis(config, 3, {}).value();
  EXPECT_EQ(basis.measured, table);
  EXPECT_TRUE(MakePlanBasis(config, 2, {}).value().measured.empty());
  const PlanChoice choice = PlannedChoice(FormatPlanBasis(basis), 3, {}, kSlotBytes).value();
  EXPECT_EQ(Chosen(choice, {Collective::kAllGather, 1 << 20}), "ring");
  EXPECT_EQ(Chosen(choice, {Collective::kAllGather, 1 << 22}), "direct");
  std::ofstream(path, std::ios::trunc) << "spoilt";
  EXPECT_TRUE(MakePlanBasis(config, 3, {}).value().measured.empty());
  config.calibrate = false;
  ASSERT_TRUE(KeepMeasured(config, 3, table).ok());
  EXPECT_TRUE(MakePlanBasis(config, 3, {}).value().measured.empty());
  std::filesystem::remove_all(config.cache_dir);
  config.cache_dir = "";
  EXPECT_THAT(KeepMeasured(config, 3, table).status().message(), HasSubstr("TIDEGATE_CACHE_DIR"));
}

TEST(MeasuredTableTest, RowsThatAreNoneAreRefusedAndForgottenAlgorithmsLeftOut) {
  const auto parse = [](const std::string& rows) {
    return ParseMeasuredFile(
        R"({"tidegate_measured":1,"machine":"m","ranks":2,"seconds":)" + rows + "}", "m", 2);
  };
  EXPECT_EQ(parse(R"([["all_gather","direct",3,1e-5]])").value().size(), 1u);
  EXPECT_TRUE(parse(R"([["all_gather","of_long_ago",3,1e-5]])").value().empty());
  EXPECT_THAT(parse(R"([["all_together","direct",3,1e-5]])").status().message(),
              HasSubstr("$.seconds[0][0]: is no collective"));
  EXPECT_THAT(parse(R"([["all_gather","direct",3,0]])").status().message(),
              HasSubstr("$.seconds[0][3]: is outside"));
  EXPECT_THAT(parse(R"([["all_gather","direct",65,1]])").status().message(),
              HasSubstr("$.seconds[0][2]"));
  EXPECT_THAT(parse(R"([["all_gather"]])").status().message(), HasSubstr("$.seconds[0]: is not"));
  EXPECT_THAT(ParseMeasuredFile(FormatMeasuredFile("a", 2, {}), "b", 2).status().message(),
              HasSubstr("of 2 ranks on \"a\", not of 2 on \"b\""));
}

TEST(PlanBasisTest, AGroupOfSomeRanksFindsThemInTheJobsFile) {
  Config config;
  config.calibrate = false;
  config.topo_file = ::testing::TempDir() + "tidegate-job.json";
  ASSERT_TRUE(DumpTopology(FakeCluster(2, 3), config.topo_file).ok());
  const std::vector<int> members = {1, 3, 4};
  const PlanBasis basis = MakePlanBasis(config, 3, members).value();
  EXPECT_EQ(basis.declared.topology.placement(),
            Placement::Make(std::vector<int>{0, 1, 1}).value());
  EXPECT_EQ(MakePlanBasis(config, 6, {}).value().declared.topology, FakeCluster(2, 3));
  EXPECT_THAT(MakePlanBasis(config, 5, {}).status().message(),
              HasSubstr("describes 6 ranks, the group has 5"));
  EXPECT_FALSE(MakePlanBasis(config, 2, std::vector<int>{0, 6}).ok());
}

TEST(PlannedChoiceTest, OnOneNodeEveryReductionIsOnePass) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const PlanChoice choice =
        PlannedChoice(BasisOf(FakeCluster(1, ranks)), ranks, {}, kSlotBytes).value();
    for (const Collective collective :
         {Collective::kReduceScatter, Collective::kAllReduce, Collective::kReduce})
      for (std::uint64_t bytes = 0; bytes < (std::uint64_t{1} << 34); bytes = bytes * 16 + 1) {
        const Result<const Algorithm*> chosen = choice.choose({collective, bytes});
        ASSERT_TRUE(chosen.ok()) << chosen.status().message();
        const auto named = std::ranges::find_if(AllAlgorithms(), [&](const NamedAlgorithm& one) {
          return &one.build == chosen.value();
        });
        ASSERT_NE(named, AllAlgorithms().end());
        EXPECT_TRUE(named->in_one_pass(Placement::OneNode(ranks)))
            << NameOf(collective) << ' ' << named->name << ' ' << bytes;
      }
  }
}

TEST(PlannedChoiceTest, WhatIsForcedIsTakenUnlessBitsWouldBeLost) {
  const PlanChoice choice = PlannedChoice(BasisOf(FakeCluster(1, 4)), 4,
                                          {{Collective::kReduceScatter, "ring"}}, kSlotBytes)
                                .value();
  EXPECT_EQ(Chosen(choice, {Collective::kReduceScatter, 1 << 20}), "ring");
  EXPECT_EQ(
      Chosen(choice,
             {.collective = Collective::kReduceScatter, .bytes = 1 << 20, .in_one_pass = true}),
      "direct");
  EXPECT_EQ(Chosen(choice, {Collective::kAllGather, 1 << 20}), "direct");
}

TEST(PlannedChoiceTest, RanksThatShareABasisChooseAlike) {
  const std::string basis = BasisOf(FakeCluster(2, 4));
  const PlanChoice one = PlannedChoice(basis, 8, {}, kSlotBytes).value();
  const PlanChoice other = PlannedChoice(basis, 8, {}, kSlotBytes).value();
  for (std::uint64_t bytes = 1; bytes < (std::uint64_t{1} << 30); bytes *= 7)
    EXPECT_EQ(one.choose({Collective::kAllGather, bytes}).value(),
              other.choose({Collective::kAllGather, bytes}).value());
}

TEST(PlannedChoiceTest, GroupsOnManyThreadsShareAPlanner) {
  const std::string basis = BasisOf(FakeCluster(1, 3));
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      const PlanChoice choice = PlannedChoice(basis, 3, {}, kSlotBytes).value();
      for (std::uint64_t bytes = 1; bytes < (std::uint64_t{1} << 24); bytes *= 2)
        EXPECT_EQ(Chosen(choice, {Collective::kReduceScatter, bytes}), "direct");
    });
}

TEST(PlannedChoiceTest, ABasisOfOtherRanksIsRefused) {
  EXPECT_THAT(PlannedChoice(BasisOf(FakeCluster(1, 3)), 4, {}, kSlotBytes).status().message(),
              HasSubstr("a description of 3 ranks for a group of 4"));
  EXPECT_FALSE(PlannedChoice("no basis", 4, {}, kSlotBytes).ok());
}

}  // namespace
}  // namespace tidegate
