// The verifier against schedules that were right until one thing in them was changed.
//
// A seeded slice; with TIDEGATE_TEST_ALL=1 10,000 mutations, and 1,000 runs of the survivors of
// each kind. TIDEGATE_TEST_SEED draws others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/verifier/verifier.h"
#include "tests/unit/collectives/support/adversary.h"
#include "tests/unit/collectives/support/placements.h"
#include "tests/unit/collectives/verifier/mutations.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

using testing::Adversary;
using testing::AllCases;
using testing::CollectiveCase;
using testing::kMutationKinds;
using testing::MutationKind;
using testing::NamedPlacement;
using testing::PlacementsOf;
using testing::TestsAll;

std::uint32_t Seed() {
  const char* const seed = std::getenv("TIDEGATE_TEST_SEED");
  return seed == nullptr ? 1 : static_cast<std::uint32_t>(std::strtoul(seed, nullptr, 10));
}

/// The programs of a group for one algorithm.
struct Plan {
  std::string name;
  const NamedPlacement* placed;
  Collective collective;
  int root;
  std::vector<Schedule> group;
  ClaimOf claim_of;
  std::vector<Report::StepOf> implied;  ///< Waits that others imply.
};

std::vector<Plan> PlansOf(const std::vector<NamedPlacement>& placements) {
  std::vector<Plan> plans;
  for (const NamedPlacement& placed : placements) {
    const int ranks = placed.placement.ranks();
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      const int root = IsRooted(algorithm.collective) ? ranks / 4 * 2 : 0;
      Plan plan{
          std::string(NameOf(algorithm.collective)) + " " + algorithm.name + " on " + placed.name,
          &placed,
          algorithm.collective,
          root,
          {},
          algorithm.build.ClaimsFor({0, ranks, root, &placed.placement}),
          {}};
      for (int rank = 0; rank < ranks; ++rank)
        plan.group.push_back(algorithm.build({rank, ranks, root, &placed.placement}));
      const Result<Report> report = VerifyThoroughly(
          plan.collective, placed.placement, root,
          [&](int rank) { return plan.group[static_cast<std::size_t>(rank)]; }, plan.claim_of);
      EXPECT_TRUE(report.ok()) << report.status().message();
      if (report.ok()) plan.implied = report.value().implied_waits;
      if (!plan.group.front().steps.empty()) plans.push_back(std::move(plan));
    }
  }
  return plans;
}

Status VerifyGroup(const Plan& plan, const std::vector<Schedule>& group) {
  return VerifyPlan(
      plan.collective, plan.placed->placement, plan.root,
      [&](int rank) { return group[static_cast<std::size_t>(rank)]; }, plan.claim_of);
}

/// Runs `group` over memory whose changes are seen late and in any order, with blocks and chunks of
/// sizes drawn by `seed`; empty when it is right.
std::string Execute(const Plan& plan, const std::vector<Schedule>& group, std::uint32_t seed) {
  const int ranks = plan.placed->placement.ranks();
  testing::AlgorithmTable table;
  table.Add(plan.collective, std::size_t{1} << 40, [&](const AlgorithmInput& input) {
    return group[static_cast<std::size_t>(input.rank)];
  });
  // Of the slots that a stage has the first seven cases take as many as the model has, so that what
  // is out of order there shows; all chunked sizes are among them.
  std::vector<CollectiveCase> cases;
  const auto chunk_elements = static_cast<int>(1 + seed * 37 % 150);
  for (CollectiveCase& one : AllCases(ranks, chunk_elements, seed))
    if (one.collective == plan.collective && (one.root < 0 || one.root == plan.root) &&
        (IsEven(one) || !group.front().even))
      cases.push_back(std::move(one));
  if (cases.empty()) return "no case for " + plan.name;
  // Chunks of 1 to 6 times 64 bytes, in halves of slots.
  const std::size_t stage_bytes = std::size_t{kStageSlots * 2 * 64} *
                                  static_cast<std::size_t>(group.front().sub_slots) *
                                  (1 + seed % 6);
  // Some ranks resident, by the seed: none in the first run.
  std::mt19937 random(seed);
  const auto is_resident = [&](std::size_t, int) { return random() % 8 < seed % 8; };
  return Adversary(ranks, seed, stage_bytes, &plan.placed->placement)
      .Run(cases, table, is_resident);
}

struct Survivor {
  const Plan* plan;
  std::vector<Schedule> group;
  std::string what;
};

TEST(VerifierMutationTest, RejectsAlmostAllAndTheRestIsHarmless) {
  const int wanted = TestsAll() ? 10'000 : 2'000;
  const int runs_of_a_kind = TestsAll() ? 1'000 : 50;
  std::vector<NamedPlacement> placements;
  for (int ranks = 2; ranks <= 5; ++ranks)
    for (NamedPlacement& placed : PlacementsOf(ranks)) placements.push_back(std::move(placed));
  // The least at which columns cross more than two nodes whose ranks are several, too.
  for (NamedPlacement& placed : PlacementsOf(8))
    if (placed.placement.nodes() == 4) placements.push_back(std::move(placed));
  const std::vector<Plan> plans = PlansOf(placements);
  std::mt19937 random(Seed());

  std::array<int, kMutationKinds> made{};
  std::array<std::vector<Survivor>, kMutationKinds> survivors;
  int total = 0;
  int survived = 0;
  int on_four_nodes_of_two = 0;
  while (total < wanted) {
    const Plan& plan = plans[random() % plans.size()];
    const auto kind = random() % kMutationKinds;
    std::vector<Schedule> group = plan.group;
    const auto what = Mutate(static_cast<MutationKind>(kind), group, plan.implied, random);
    if (!what) continue;
    ++total;
    ++made[kind];
    if (group.size() == 8) ++on_four_nodes_of_two;
    if (!VerifyGroup(plan, group).ok()) continue;
    ++survived;
    survivors[kind].push_back({&plan, std::move(group), plan.name + ": " + *what});
  }

  std::printf("%-22s %7s %9s %10s\n", "mutation", "made", "rejected", "survivors");
  for (std::size_t kind = 0; kind < kMutationKinds; ++kind) {
    const int left = static_cast<int>(survivors[kind].size());
    std::printf("%-22s %7d %9d %10d\n", NameOf(static_cast<MutationKind>(kind)), made[kind],
                made[kind] - left, left);
  }
  std::printf("%-22s %7d %9d %10d\n", "all", total, total - survived, survived);
  std::printf("of these on 4 nodes of 2 %d\n", on_four_nodes_of_two);
  if (std::getenv("TIDEGATE_TEST_SURVIVORS") != nullptr)
    for (const auto& of_kind : survivors)
      for (const Survivor& one : of_kind) std::printf("%s\n", one.what.c_str());
  EXPECT_GE(total - survived, total * 99 / 100);
  EXPECT_GE(on_four_nodes_of_two, total / 20);

  for (const auto& of_kind : survivors) {
    for (int run = 0; run < runs_of_a_kind && !of_kind.empty(); ++run) {
      const Survivor& one = of_kind[static_cast<std::size_t>(run) % of_kind.size()];
      ASSERT_EQ(Execute(*one.plan, one.group, Seed() + static_cast<std::uint32_t>(run)), "")
          << one.what << "; run " << run << " of the right plan: "
          << Execute(*one.plan, one.plan->group, Seed() + static_cast<std::uint32_t>(run));
    }
  }
}

/// Rank 7 of reduce_scatter's leader_pairwise takes a slot again once rank 4 has read it. Rank 1 is
/// later than that unless the blocks that it waits for have ended: pairs of blocks show it.
TEST(VerifierMutationTest, RejectsAWaitThatIsEnoughWhileOtherBlocksLast) {
  std::vector<NamedPlacement> placements;
  for (NamedPlacement& placed : PlacementsOf(8))
    if (placed.name == "2+2+2+2 at random") placements.push_back(std::move(placed));
  ASSERT_EQ(placements.size(), 1U);
  for (const Plan& plan : PlansOf(placements)) {
    if (plan.collective != Collective::kReduceScatter ||
        plan.group.front().name != "leader_pairwise")
      continue;
    std::vector<Schedule> group = plan.group;
    Step& wait = group[7].steps[3];
    ASSERT_EQ(wait.kind, StepKind::kWait);
    ASSERT_EQ(wait.peer, 4);
    ASSERT_EQ(wait.wait_offset, -kChunksInFlight);
    EXPECT_TRUE(VerifyGroup(plan, group).ok());
    wait.peer = 1;
    EXPECT_THAT(VerifyGroup(plan, group).message(),
                ::testing::HasSubstr("races: writes stage(7)[3] while rank 4 may be reading"));
    return;
  }
  FAIL() << "no such plan";
}

}  // namespace
}  // namespace tidegate
