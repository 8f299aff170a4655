// Inputs in the group's own memory or in that of their process: read where they lie, by some ranks
// or all, with the results of any other memory.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/adversary.h"
#include "tests/unit/collectives/support/placements.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

using testing::Adversary;
using testing::AllCases;
using testing::CollectiveCase;

constexpr std::size_t kStageBytes = 64 << 10;

class ResidencyTest : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }

  /// Runs every algorithm over every case of its collective.
  void RunAll(const Adversary::Choice& is_resident,
              const Adversary::Choice& is_single_copy = nullptr) {
    // Many ranks on several nodes take minutes under a sanitizer: with TIDEGATE_TEST_ALL=1.
    const bool all = testing::TestsAll();
    for (const testing::NamedPlacement& placed : testing::PlacementsOf(ranks()))
      if (all || ranks() <= 4 || placed.placement.nodes() == 1)
        RunOn(placed.placement, is_resident, is_single_copy);
  }

  void RunOn(const Placement& placement, const Adversary::Choice& is_resident,
             const Adversary::Choice& is_single_copy) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placement)) continue;
      testing::AlgorithmTable table;
      table.Add(algorithm.collective, std::size_t{1} << 40, algorithm.build);
      std::vector<CollectiveCase> cases;
      for (const CollectiveCase& one : AllCases(ranks(), 150, 7))
        if (one.collective == algorithm.collective && (IsEven(one) || !algorithm.even))
          cases.push_back(one);
      Adversary adversary(ranks(), 11, kStageBytes, &placement);
      ASSERT_EQ(adversary.Run(cases, table, is_resident, is_single_copy), "")
          << NameOf(algorithm.collective) << " " << algorithm.name;
      if (ranks() == 1 || placement.nodes() > 1) continue;
      std::uint64_t in_place = 0;
      for (int rank = 0; rank < ranks(); ++rank) {
        in_place += adversary.ResidentBytesOf(rank) + adversary.SingleCopyBytesOf(rank);
        if (Reduces(algorithm.collective)) {
          EXPECT_EQ(adversary.SingleCopyBytesOf(rank), 0u);
        }
      }
      const bool stages_inputs =
          algorithm.collective != Collective::kBarrier &&
          (algorithm.name == "direct" || algorithm.name == "tree" || algorithm.name == "two_shot");
      if (stages_inputs && (is_resident || !Reduces(algorithm.collective))) {
        EXPECT_GT(in_place, 0u) << NameOf(algorithm.collective);
      }
    }
  }
};

TEST_P(ResidencyTest, AllRanksAreResident) {
  RunAll([](std::size_t, int) { return true; });
}

TEST_P(ResidencyTest, RanksAndCallsDiffer) {
  for (unsigned seed = 1; seed <= (ranks() < 4 ? 4u : 1u); ++seed) {
    std::mt19937 random(seed);
    RunAll([&](std::size_t, int) { return random() % 2 == 0; });
  }
}

TEST_P(ResidencyTest, AllProcessesAreRead) {
  RunAll(nullptr, [](std::size_t, int) { return true; });
}

TEST_P(ResidencyTest, SomeAreResidentSomeProcessesAreRead) {
  std::mt19937 random(5);
  const auto sometimes = [&](std::size_t, int) { return random() % 3 == 0; };
  RunAll(sometimes, sometimes);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResidencyTest, ::testing::Values(1, 2, 3, 4, 5, 8));

/// Two ranks in an all-gather of `kElements` int32 each, by hand.
struct TwoRanks {
  static constexpr std::size_t kElements = 50'000;  // Several chunks.
  static constexpr std::size_t kBytes = kElements * sizeof(std::int32_t);

  TwoRanks() : group(2, kStageBytes, std::size_t{4} << 20) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto row = static_cast<std::size_t>(rank);
      executions.emplace_back(group.transport(rank), 0);
      outputs.emplace_back(2 * kElements);
      ordinary.emplace_back(kElements, rank + 1);
      schedules[row] = FindAlgorithm(Collective::kAllGather, "direct")
                           ->build({.rank = rank, .ranks = 2, .placement = &placement});
    }
  }

  std::int32_t* Region(int rank) {
    return reinterpret_cast<std::int32_t*>(group.transport(rank).RegionOf(rank));
  }

  PreparedCall Call(int rank, bool resident) {
    const auto row = static_cast<std::size_t>(rank);
    std::byte* input = reinterpret_cast<std::byte*>(ordinary[row].data());
    if (resident) {
      std::fill_n(Region(rank), kElements, rank + 1);
      input = reinterpret_cast<std::byte*>(Region(rank));
    }
    auto* const output = reinterpret_cast<std::byte*>(outputs[row].data());
    const CollectiveRequest request{.collective = Collective::kAllGather,
                                    .dtype = DataType::kInt32,
                                    .inputs = {{input, kBytes}},
                                    .outputs = {{output, kBytes}, {output + kBytes, kBytes}}};
    return Prepare(request, schedules[row], 1, kStageBytes, DataPaths{kStageBytes, 1 << 30, 0});
  }

  Execution::Outcome Advance(int rank) {
    const Result<Execution::Outcome> outcome = executions[static_cast<std::size_t>(rank)].Advance();
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome.ok() ? outcome.value() : Execution::Outcome::kDone;
  }

  const Placement placement = Placement::OneNode(2);
  LoopbackGroup group;
  std::vector<Execution> executions;
  std::vector<std::vector<std::int32_t>> outputs;
  std::vector<std::vector<std::int32_t>> ordinary;
  Schedule schedules[2];
};

TEST(ResidentPairTest, OwnerIsDoneOnceAllHaveReadItsInputs) {
  TwoRanks two;
  const PreparedCall of_owner = two.Call(0, true);
  const PreparedCall of_other = two.Call(1, true);
  ASSERT_TRUE(two.executions[0].Start(Bind(of_owner)).ok());
  ASSERT_TRUE(two.executions[1].Start(Bind(of_other)).ok());
  // Nothing but the arrival of the other is needed to run all steps.
  EXPECT_EQ(two.Advance(0), Execution::Outcome::kBlocked);
  EXPECT_EQ(two.outputs[0].back(), 2);
  std::vector<int> awaited;
  two.executions[0].AwaitedPeers(&awaited);
  EXPECT_EQ(awaited, std::vector<int>{1});
  two.executions[0].PublishWait();
  two.executions[0].LastAwaited(&awaited);
  EXPECT_EQ(awaited, std::vector<int>{1});
  EXPECT_EQ(two.Advance(1), Execution::Outcome::kDone);
  EXPECT_EQ(two.Advance(0), Execution::Outcome::kDone);
  EXPECT_EQ(two.outputs[1].front(), 1);
  EXPECT_EQ(two.executions[0].resident_bytes(), TwoRanks::kBytes);
}

TEST(ResidentPairTest, OrdinaryRankWaitsForNobodyAtItsEnd) {
  TwoRanks two;
  const PreparedCall of_owner = two.Call(0, true);
  const PreparedCall of_other = two.Call(1, false);
  ASSERT_TRUE(two.executions[0].Start(Bind(of_owner)).ok());
  ASSERT_TRUE(two.executions[1].Start(Bind(of_other)).ok());
  for (int round = 0; round < 1000 && two.Advance(1) != Execution::Outcome::kDone; ++round)
    EXPECT_EQ(two.Advance(0), Execution::Outcome::kBlocked);
  EXPECT_EQ(two.Advance(0), Execution::Outcome::kDone);
  EXPECT_EQ(two.executions[0].bytes_from_peers(), TwoRanks::kBytes);
  EXPECT_EQ(two.executions[0].resident_bytes(), 0u);
  EXPECT_EQ(two.executions[1].resident_bytes(), TwoRanks::kBytes);
}

TEST(ResidentPairTest, NothingIsReadWhereAPeerSaysThatCannotBe) {
  const std::uint64_t region = TwoRanks().group.transport(0).region_bytes();
  for (const std::uint64_t at : {region - TwoRanks::kBytes + 4, region + 4, ~std::uint64_t{3},
                                 std::uint64_t{2}, std::uint64_t{1} << 63}) {
    TwoRanks two;
    const PreparedCall mine = two.Call(0, true);
    const PreparedCall theirs = two.Call(1, true);
    ASSERT_TRUE(two.executions[0].Start(Bind(mine)).ok());
    Fingerprint garbage = theirs.fingerprint;
    garbage.inputs_in = InputsIn::kRegion;
    garbage.inputs_at = at;
    two.group.transport(1).Arrive(0, 1, garbage, {});
    const Result<Execution::Outcome> outcome = two.executions[0].Advance();
    ASSERT_FALSE(outcome.ok()) << at;
    EXPECT_EQ(outcome.status().code(), StatusCode::kMismatch);
    EXPECT_NE(outcome.status().message().find("rank 1"), std::string::npos)
        << outcome.status().message();
    EXPECT_NE(outcome.status().message().find(std::to_string(at)), std::string::npos);
  }
}

TEST(ResidentPairTest, OwnerIsDoneOnceAllHaveReadItInItsProcess) {
  TwoRanks two;
  PreparedCall of_owner = two.Call(0, false);
  of_owner.single_copy = true;
  const PreparedCall of_other = two.Call(1, true);
  ASSERT_TRUE(two.executions[0].Start(Bind(of_owner)).ok());
  ASSERT_TRUE(two.executions[1].Start(Bind(of_other)).ok());
  EXPECT_EQ(two.Advance(0), Execution::Outcome::kBlocked);
  EXPECT_EQ(two.Advance(1), Execution::Outcome::kDone);
  EXPECT_EQ(two.outputs[1].front(), 1);
  EXPECT_EQ(two.executions[1].single_copy_bytes(), TwoRanks::kBytes);
  EXPECT_EQ(two.Advance(0), Execution::Outcome::kDone);
}

TEST(ResidentPairTest, AReaderOfAProcessThatEndsWaitsForThatRank) {
  TwoRanks two;
  two.group.set_trouble([](int) { return Status(StatusCode::kPeerLost, "it has ended"); });
  PreparedCall of_owner = two.Call(0, false);
  of_owner.single_copy = true;
  const PreparedCall of_other = two.Call(1, true);
  ASSERT_TRUE(two.executions[0].Start(Bind(of_owner)).ok());
  ASSERT_TRUE(two.executions[1].Start(Bind(of_other)).ok());
  EXPECT_EQ(two.Advance(0), Execution::Outcome::kBlocked);  // It has read all that it wants.
  EXPECT_EQ(two.Advance(1), Execution::Outcome::kBlocked);
  std::vector<int> awaited;
  two.executions[1].AwaitedPeers(&awaited);
  EXPECT_EQ(awaited, std::vector<int>{0});
}

TEST(ResidentPairTest, ARankWhoseTensorIsNotThereIsToBlameUnlessTheOutputIsNot) {
  const auto blamed = [](StatusCode code, const char* remedy) {
    TwoRanks two;
    two.group.set_trouble([&](int) { return Status(code, "a bad address"); });
    PreparedCall of_owner = two.Call(0, false);
    of_owner.single_copy = true;
    const PreparedCall of_other = two.Call(1, false);
    EXPECT_TRUE(two.executions[0].Start(Bind(of_owner)).ok());
    EXPECT_TRUE(two.executions[1].Start(Bind(of_other)).ok());
    const Result<Execution::Outcome> outcome = two.executions[1].Advance();
    EXPECT_EQ(outcome.status().code(),
              code == StatusCode::kUnsupported ? code : StatusCode::kInternal);
    for (const char* part : {"rank 1 cannot copy the tensor of rank 0 (pid 0, host loopback)",
                             "all_gather(", "a bad address", remedy})
      EXPECT_NE(outcome.status().message().find(part), std::string::npos)
          << outcome.status().message();
    return two.executions[1].culprit();
  };
  EXPECT_EQ(blamed(StatusCode::kInvalidArgument, "until their work is done"), 0);
  EXPECT_EQ(blamed(StatusCode::kInternal, "must be writable"), 1);
  EXPECT_EQ(blamed(StatusCode::kUnsupported, "TIDEGATE_SINGLE_COPY_BYTES=0"), -1);
}

TEST(ResidentPairTest, AReaderIsNotDoneOnceTheGroupHasFailed) {
  TwoRanks two;
  PreparedCall of_owner = two.Call(0, false);
  of_owner.single_copy = true;
  const PreparedCall of_other = two.Call(1, false);
  ASSERT_TRUE(two.executions[0].Start(Bind(of_owner)).ok());
  ASSERT_TRUE(two.executions[1].Start(Bind(of_other)).ok());
  EXPECT_EQ(two.Advance(0), Execution::Outcome::kBlocked);
  // The caller of rank 0 may do with its tensor what it likes from here on.
  two.group.transport(0).Fail({StatusCode::kAborted, 0, 0, "aborted"});
  for (int round = 0; round < 100; ++round) EXPECT_EQ(two.Advance(1), Execution::Outcome::kBlocked);
}

TEST(ResidentPairTest, NoProcessIsReadWhereAPeerSaysThatCannotBe) {
  TwoRanks two;
  const PreparedCall mine = two.Call(0, true);
  const PreparedCall theirs = two.Call(1, true);
  for (const auto& [in, at] : {std::pair{InputsIn::kProcess, ~std::uint64_t{7}},
                               std::pair{static_cast<InputsIn>(3), std::uint64_t{0}}}) {
    TwoRanks again;
    ASSERT_TRUE(again.executions[0].Start(Bind(mine)).ok());
    Fingerprint garbage = theirs.fingerprint;
    garbage.inputs_in = in;
    garbage.inputs_at = at;
    again.group.transport(1).Arrive(0, 1, garbage, {});
    const Result<Execution::Outcome> outcome = again.executions[0].Advance();
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.status().code(), StatusCode::kMismatch);
    EXPECT_NE(outcome.status().message().find("rank 1"), std::string::npos);
  }
}

/// Of two inputs that lie one behind the other only the first can be read by others.
struct Abutting {
  explicit Abutting(InputMemory memory) {
    two.group.set_is_readable([this](const std::byte* data, std::size_t) {
      asked.push_back(data - bytes());
      return data == bytes();
    });
    two.schedules[0] = FindAlgorithm(Collective::kAllToAll, "direct")
                           ->build({.rank = 0, .ranks = 2, .placement = &two.placement});
    CollectiveRequest request{
        .collective = Collective::kAllToAll,
        .dtype = DataType::kInt32,
        .even = true,
        .input_memory = memory,
        .inputs = {{bytes(), kHalf}, {bytes() + kHalf, kHalf}},
        .outputs = {{bytes() + 2 * kHalf, kHalf}, {bytes() + 3 * kHalf, kHalf}}};
    const PreparedCall call = Prepare(request, two.schedules[0], 1, kStageBytes,
                                      {.single_copy_bytes = kMostSingleCopyBytes});
    EXPECT_TRUE(two.executions[0].Start(Bind(call)).ok());
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(two.outputs[0].data()); }
  InputsIn offered() { return two.group.transport(0).ArrivalOf(0, 0, 1).inputs_in; }

  static constexpr std::ptrdiff_t kHalf = TwoRanks::kBytes / 2;
  TwoRanks two;
  std::vector<std::ptrdiff_t> asked;
};

TEST(ResidentPairTest, InputsSideBySideAreEachAskedAboutUnlessOfOneAllocation) {
  Abutting any(InputMemory::kAny);
  EXPECT_EQ(any.asked, (std::vector<std::ptrdiff_t>{0, Abutting::kHalf}));
  EXPECT_EQ(any.offered(), InputsIn::kStage);
  Abutting one(InputMemory::kOneAllocation);
  EXPECT_EQ(one.asked, std::vector<std::ptrdiff_t>{0});
  EXPECT_EQ(one.offered(), InputsIn::kProcess);
  Abutting known(InputMemory::kMalloc);
  EXPECT_EQ(known.asked, std::vector<std::ptrdiff_t>{});
  EXPECT_EQ(known.offered(), InputsIn::kProcess);
}

TEST(ResidentPairTest, InputsThatAreNotAlignedAreOrdinary) {
  TwoRanks two;
  const PreparedCall call = two.Call(0, true);
  PreparedCall odd = two.Call(0, true);
  odd.inputs[0].data += 2;
  ASSERT_TRUE(two.executions[0].Start(Bind(odd)).ok());
  EXPECT_EQ(two.group.transport(0).ArrivalOf(0, 0, 1).inputs_in, InputsIn::kStage);
}

}  // namespace
}  // namespace tidegate
