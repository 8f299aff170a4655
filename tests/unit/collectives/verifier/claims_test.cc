// A plan puts just the bytes over the wire that it claims.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/schedule_text.h"
#include "collectives/verifier/verifier.h"
#include "tests/unit/collectives/support/placements.h"

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::NamedPlacement;
using testing::PlacementsOf;

/// Rank 0 gives its block to ranks 1 and 2, which share another node, over the wire to each.
Schedule BroadcastTwiceOverTheWire(int rank) {
  const std::string me = std::to_string(rank);
  std::string text = "broadcast test rank " + me + " of 3 root 0 sub_slots 1 parts 1 period 1\n";
  text += rank == 0 ? "  lag 0  wait 1 mark 1 c-2  while input[0] has c\n"
                      "  lag 0  put stage(1)[0] <- input[0]  while input[0] has c\n"
                      "  lag 0  wait 2 mark 1 c-2  while input[0] has c\n"
                      "  lag 0  put stage(2)[0] <- input[0]  while input[0] has c\n"
                      "  lag 0  signal all mark 0  while longest has c\n"
                    : "  lag 1  wait 0 mark 0 c  while output[0] has c\n"
                      "  lag 1  copy output[0] <- stage(" +
                          me +
                          ")[0]  while output[0] has c\n"
                          "  lag 1  signal all mark 1  while longest has c+2\n";
  return ParseScheduleText(text).value();
}

Status VerifyBroadcast(const std::vector<WireClaim>& of_root) {
  const Placement placement = Placement::Make(std::vector<int>{0, 1, 1}).value();
  return VerifyPlan(Collective::kBroadcast, placement, 0, BroadcastTwiceOverTheWire,
                    [&](int rank) { return rank == 0 ? of_root : std::vector<WireClaim>(); });
}

TEST(ClaimsTest, AScheduleThatSendsABlockTwiceIsRejectedForThatAlone) {
  EXPECT_EQ(VerifyBroadcast({{1, 0}, {2, 0}}).message(), "");
  EXPECT_THAT(VerifyBroadcast({{1, 0}}).message(),
              AllOf(HasSubstr("broadcast test rank 0, step 3 (lag 0  put stage(2)[0] <- input[0]"),
                    HasSubstr("claims to put 0 bytes to rank 2, of another node; its steps put")));
}

TEST(ClaimsTest, ThatAreWrongAreRejected) {
  EXPECT_THAT(
      VerifyBroadcast({{1, 0}, {2, 0}, {2, 0}}).message(),
      HasSubstr("claims to put 12288 bytes to rank 2, of another node; its steps put 6144"));
  EXPECT_THAT(VerifyBroadcast({}).message(), HasSubstr("claims to put 0 bytes to rank 1"));
  EXPECT_THAT(VerifyBroadcast({{1, 1}}).message(), HasSubstr("there is no such block"));
  EXPECT_THAT(VerifyBroadcast({{1, 0}, {2, 0}, {3, 0}}).message(), HasSubstr("no such rank"));
  EXPECT_THAT(VerifyBroadcast({{0, 0}}).message(), HasSubstr("no such rank"));
}

TEST(ClaimsTest, OfLessWasteRejectTheAlgorithmThatWastes) {
  const Placement placement = Placement::Block(2, 2);
  const AlgorithmInput input{.ranks = 4, .placement = &placement};
  const Algorithm& direct = FindAlgorithm(Collective::kAllGather, "direct")->build;
  const Algorithm& column = FindAlgorithm(Collective::kAllGather, "column_pairwise")->build;
  EXPECT_EQ(VerifyPlan(Collective::kAllGather, placement, 0, direct.Programs(input)).message(), "");
  EXPECT_THAT(VerifyPlan(Collective::kAllGather, placement, 0, direct.Programs(input),
                         column.ClaimsFor(input))
                  .message(),
              HasSubstr("all_gather direct rank 0"));
}

TEST(ClaimsTest, OfGroupsProvedBySymmetryAreChecked) {
  const Placement placement = Placement::Block(12, 8);
  const AlgorithmInput input{.ranks = 96, .placement = &placement};
  const Algorithm& column = FindAlgorithm(Collective::kAllGather, "column_bruck")->build;
  EXPECT_EQ(VerifyPlan(Collective::kAllGather, placement, 0, column.Programs(input),
                       column.ClaimsFor(input))
                .message(),
            "");
  const ClaimOf nothing = [](int) { return std::vector<WireClaim>(); };
  EXPECT_THAT(
      VerifyPlan(Collective::kAllGather, placement, 0, column.Programs(input), nothing).message(),
      HasSubstr("claims to put 0 bytes"));
}

TEST(ClaimsTest, OfEveryAlgorithmAreRejectedWhenTheyMissABlock) {
  int tried = 0;
  for (const NamedPlacement& placed : PlacementsOf(5)) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      const AlgorithmInput input{.ranks = 5, .root = 2, .placement = &placed.placement};
      const ClaimOf claim_of = algorithm.build.ClaimsFor(input);
      int chatty = 0;
      while (chatty < 5 && claim_of(chatty).empty()) ++chatty;
      if (chatty == 5) continue;
      ++tried;
      const ClaimOf less = [&](int rank) {
        std::vector<WireClaim> claims = claim_of(rank);
        if (rank == chatty) claims.pop_back();
        return claims;
      };
      EXPECT_THAT(VerifyPlan(algorithm.collective, placed.placement, 2,
                             algorithm.build.Programs(input), less)
                      .message(),
                  HasSubstr("claims to put"))
          << algorithm.name << " on " << placed.name;
    }
  }
  EXPECT_GT(tried, 100);
}

}  // namespace
}  // namespace tidegate
