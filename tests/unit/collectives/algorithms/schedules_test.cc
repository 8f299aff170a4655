// What every algorithm emits, as text: unchanged from tests/data/schedules, well formed, and
// readable again.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/check_schedule.h"
#include "collectives/schedule/schedule_json.h"
#include "collectives/schedule/schedule_text.h"
#include "tests/unit/collectives/support/placements.h"

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
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const auto& [name, placement] : testing::PlacementsOf(ranks))
      for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
        if (!algorithm.serves(placement)) continue;
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

// Steps of one rank of 16,384 are a few for each of its own hops; that the other ranks' are not
// built, and nothing is quadratic, shows in the time, which is printed: some milliseconds, where a
// search among all hops for each hop took minutes.
TEST(SchedulesTest, OfOneRankCostItsOwnSteps) {
  const Placement placement = Placement::Block(2048, 8);
  const std::size_t ranks = 16384;
  struct Case {
    Collective collective;
    const char* name;
    std::size_t most_steps;
  };
  for (const Case& each : {Case{Collective::kAllGather, "column_bruck", ranks / 16},
                           Case{Collective::kAllGather, "column_far_first", ranks / 16},
                           Case{Collective::kAllGather, "column_ring", 4 * ranks},
                           Case{Collective::kAllGather, "ring", 7 * ranks},
                           Case{Collective::kAllGather, "direct", 7 * ranks},
                           Case{Collective::kReduceScatter, "column_bruck", ranks / 16},
                           Case{Collective::kReduceScatter, "column_segmented_bruck", ranks / 8},
                           Case{Collective::kReduceScatter, "column_ring", 4 * ranks},
                           Case{Collective::kReduceScatter, "direct", 7 * ranks},
                           Case{Collective::kAllReduce, "column_bruck", ranks / 16},
                           Case{Collective::kAllReduce, "ring", 14 * ranks},
                           Case{Collective::kAllToAll, "column", 3 * ranks}}) {
    const auto begin = std::chrono::steady_clock::now();
    const Schedule schedule = FindAlgorithm(each.collective, each.name)
                                  ->build({.rank = 9876, .ranks = 16384, .placement = &placement});
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    std::printf("%14s %-16s %6zu steps %6zu operands %8.2f ms\n", NameOf(each.collective).data(),
                each.name, schedule.steps.size(), schedule.operands.size(), taken.count());
    EXPECT_LE(schedule.steps.size(), each.most_steps) << each.name;
    EXPECT_EQ(CheckSchedule(schedule).message(), "") << each.name;
  }
}

}  // namespace
}  // namespace tidegate
