// What every algorithm emits, as text: unchanged from tests/data/schedules, well formed, and
// readable again.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/check_schedule.h"
#include "collectives/schedule/schedule_json.h"
#include "collectives/schedule/schedule_text.h"
#include "tests/unit/collectives/support/placements.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

const std::filesystem::path kFolder = TIDEGATE_SOURCE_DIR "/tests/data/schedules";

std::string FileName(const NamedAlgorithm& algorithm, const std::string& placement) {
  return std::string(NameOf(algorithm.collective)) + "_" + algorithm.name + "_" + placement +
         ".txt";
}

/// Nodes and ranks of a node, even and uneven; "by" some nodes below each switch.
std::vector<testing::NamedPlacement> GoldenPlacements() {
  return {{"1x4", Placement::Block(1, 4)},
          {"2x2", Placement::Block(2, 2)},
          {"3x2", Placement::Block(3, 2)},
          {"3+1", Placement::Make(std::vector<int>{0, 0, 0, 1}).value()},
          {"4x2", Placement::Block(4, 2)},
          {"4x2_by_2", Placement::Block(4, 2).WithSwitches(2)}};
}

/// Of eight ranks only those algorithms that do there what they do nowhere smaller, and both halves
/// of an all-reduce only by themselves: these files are long.
bool HasGolden(const NamedAlgorithm& algorithm, const std::string& placement) {
  const auto is_of = [&](std::initializer_list<const char*> names) {
    return algorithm.collective != Collective::kAllReduce &&
           std::ranges::find(names, algorithm.name) != names.end();
  };
  if (placement == "4x2")
    return algorithm.name == "column_doubling" ||
           is_of({"column_segmented_bruck", "column_segmented_far_first",
                  "column_recursive_doubling"});
  if (placement == "4x2_by_2")
    return is_of({"column_far_first", "column_segmented_far_first", "column_circle"});
  return true;
}

/// All ranks of `placement`; the root, where there is one, is rank 1.
std::string TextOfAllRanks(const NamedAlgorithm& algorithm, const Placement& placement,
                           bool with_name = true) {
  std::string text;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    Schedule schedule = algorithm.build(
        {.rank = rank, .ranks = placement.ranks(), .root = 1, .placement = &placement});
    if (!with_name) schedule.name = "any";
    text += ToText(schedule);
  }
  return text;
}

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// To write the files anew after a change that is meant, review the difference, and commit it:
//   TIDEGATE_TEST_REGENERATE=1
//   build/release/tests/unit/collectives/algorithms/collectives_schedules_test
TEST(SchedulesTest, AreThoseOfTheGoldenFiles) {
  const bool regenerate = std::getenv("TIDEGATE_TEST_REGENERATE") != nullptr;
  std::set<std::string> expected;
  for (const auto& [name, placement] : GoldenPlacements()) {
    std::set<std::string> seen;
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placement) || !HasGolden(algorithm, name)) continue;
      // Between two nodes all exchanges are one; those that are another's equal have no file.
      if (!seen.insert(TextOfAllRanks(algorithm, placement, /*with_name=*/false)).second) continue;
      const std::string file = FileName(algorithm, name);
      expected.insert(file);
      const std::string text = TextOfAllRanks(algorithm, placement);
      if (regenerate) std::ofstream(kFolder / file, std::ios::binary) << text;
      EXPECT_TRUE(Contents(kFolder / file) == text)
          << file << " differs; if that is meant, write it anew (see this test's comment)";
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    EXPECT_TRUE(expected.contains(entry.path().filename().string()))
        << entry.path() << " belongs to no algorithm; delete it";
}

TEST(SchedulesTest, OfEveryPlacementPassTheCheckAndReadBackAsEqual) {
  // In builds that are slow a third of the pairs of placement and algorithm.
  const int every = testing::kIsSlowBuild && !testing::TestsAll() ? 3 : 1;
  int pair = 0;
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const auto& [name, placement] : testing::PlacementsOf(ranks))
      for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
        if (!algorithm.serves(placement) || pair++ % every != 0) continue;
        for (int rank = 0; rank < ranks; rank += ranks > 4 ? 3 : 1) {
          const Schedule schedule = algorithm.build(
              {.rank = rank, .ranks = ranks, .root = ranks / 2, .placement = &placement});
          ASSERT_EQ(schedule.even, algorithm.even) << FileName(algorithm, name);
          for (const Result<Schedule>& read :
               {ParseScheduleText(ToText(schedule)), ParseScheduleJson(ToJson(schedule))}) {
            ASSERT_TRUE(read.ok())
                << FileName(algorithm, name) << " rank " << rank << ": " << read.status().message();
            ASSERT_TRUE(read.value() == schedule) << FileName(algorithm, name) << " rank " << rank;
          }
        }
      }
}

TEST(SchedulesTest, OfTheDocumentationIsWhatTheAlgorithmEmits) {
  const std::string document = Contents(TIDEGATE_SOURCE_DIR "/docs/architecture.md");
  const std::size_t begin = document.find("```\nreduce_scatter direct") + 4;
  const Placement placement = Placement::Make(std::vector<int>{0, 0, 1}).value();
  EXPECT_EQ(document.substr(begin, document.find("```", begin) - begin),
            ToText(FindAlgorithm(Collective::kReduceScatter, "direct")
                       ->build({.rank = 0, .ranks = 3, .placement = &placement})));
}

TEST(SchedulesTest, DependOnNothingThatGrowsWithTheMessage) {
  // All that an algorithm sees; a size among it would not compile here.
  const AlgorithmInput input{.rank = 1, .ranks = 4};
  const auto& [rank, ranks, root, placement] = input;
  EXPECT_EQ(rank + ranks + root, 5);
  EXPECT_EQ(placement, nullptr);
}

constexpr int kManyRanks = 16384;

/// Of the program of one rank of kManyRanks on nodes of eight.
std::size_t MostSteps(const NamedAlgorithm& algorithm) {
  struct Few {
    Collective collective;
    const char* name;
    std::size_t most;
  };
  constexpr std::size_t kRanks = kManyRanks;
  for (const Few& each :
       {Few{Collective::kAllGather, "column_bruck", kRanks / 16},
        Few{Collective::kAllGather, "column_far_first", kRanks / 16},
        Few{Collective::kAllGather, "column_ring", 4 * kRanks},
        Few{Collective::kAllGather, "bruck", kRanks / 64},
        Few{Collective::kReduceScatter, "column_bruck", kRanks / 16},
        Few{Collective::kReduceScatter, "column_segmented_bruck", kRanks / 8},
        Few{Collective::kReduceScatter, "column_ring", 4 * kRanks},
        Few{Collective::kAllReduce, "column_bruck", kRanks / 16},
        Few{Collective::kAllToAll, "column", 3 * kRanks}, Few{Collective::kBroadcast, "tree", 64}})
    if (algorithm.collective == each.collective && algorithm.name == each.name) return each.most;
  return (algorithm.collective == Collective::kAllReduce ? 14 : 7) * kRanks;
}

// A rank's program is built from its own hops. Were the other ranks' built too, or all hops
// searched for each hop, that would take seconds and minutes. The limit is several times what there
// is, and counts the processor's time, which other jobs hardly lengthen: 5 ms at most for the
// shortest programs, whose messages name 16,384 blocks, and 35 to 80 ms for the longest, of 180,000
// steps.
TEST(SchedulesTest, OfOneRankCostItsOwnSteps) {
  const Placement one_switch = Placement::Block(kManyRanks / 8, 8);
  const Placement leaves = one_switch.WithSwitches(32);
  std::pair<double, std::string> slowest;
  for (const Placement* placement : {&one_switch, &leaves})
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(*placement)) continue;
      if (testing::kIsSlowBuild && placement == &one_switch) continue;
      for (const int rank : {0, 9876}) {  // The root, where there is one, is rank 0.
        if (testing::kIsSlowBuild && !testing::TestsAll() && rank == 0) continue;
        const std::string what = std::string(NameOf(algorithm.collective)) + " " + algorithm.name +
                                 " rank " + std::to_string(rank);
        const std::clock_t begin = std::clock();
        const Schedule schedule =
            algorithm.build({.rank = rank, .ranks = kManyRanks, .placement = placement});
        const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
        const std::size_t length = schedule.steps.size() + schedule.operands.size();
        EXPECT_LE(schedule.steps.size(), MostSteps(algorithm)) << what;
        EXPECT_EQ(CheckSchedule(schedule).message(), "") << what;
        if (!testing::kIsSlowBuild) {
          EXPECT_LT(seconds, 0.1 + 2e-6 * static_cast<double>(length)) << what;
        }
        slowest = std::max(slowest, {seconds, what});
      }
    }
  std::printf("%s: %.1f ms\n", slowest.second.c_str(), 1e3 * slowest.first);
}

}  // namespace
}  // namespace tidegate
