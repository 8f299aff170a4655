#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/algorithm_table.h"

namespace tidegate {
namespace {

constexpr std::size_t kStageBytes = 4096;
constexpr int kOtherLane = 1;

/// Rank 0 has entered an all-gather in lane 0; what the others did is written by hand.
class DisagreementTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;

  /// Rank 0 enters its lane's first call under `sequence`, and blocks.
  void Enter(std::uint64_t sequence) {
    const CollectiveRequest request{.collective = Collective::kAllGather,
                                    .dtype = DataType::kInt32,
                                    .inputs = {{input_.data(), 8}},
                                    .outputs = {{output_.data(), 8},
                                                {output_.data() + 8, 8},
                                                {output_.data() + 16, 8},
                                                {output_.data() + 24, 8}}};
    static const testing::AlgorithmTable table = testing::AlgorithmTable::Default();
    const Algorithm* algorithm = table.Choose(Collective::kAllGather, MessageBytes(request));
    schedule_ = (*algorithm)({.rank = 0, .ranks = kRanks, .root = 0});
    call_ = Prepare(request, schedule_, sequence, kStageBytes, DataPaths{kStageBytes, 1 << 30});
    ASSERT_TRUE(execution_.Start(Bind(call_)).ok());
    const Result<Execution::Outcome> outcome = execution_.Advance();
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    ASSERT_EQ(outcome.value(), Execution::Outcome::kBlocked);
  }

  /// `rank` arrives at the first call of `lane`.
  void Arrive(int rank, int lane, Collective collective, std::uint64_t sequence) {
    Fingerprint fingerprint = call_.fingerprint;
    fingerprint.collective = collective;
    fingerprint.sequence = sequence;
    group_.transport(rank).Arrive(lane, 1, fingerprint, {});
  }

  void ExpectFound(int peer, const std::string& theirs, const std::string& ours) {
    Disagreement found;
    ASSERT_TRUE(execution_.FindDisagreement(&found));
    EXPECT_TRUE(found.explained) << found.mismatch.message();
    EXPECT_EQ(found.peer, peer);
    EXPECT_EQ(found.mismatch.code(), StatusCode::kMismatch);
    const std::string& text = found.mismatch.message();
    EXPECT_NE(
        text.find("rank " + std::to_string(peer) + " (pid 0, host loopback) called " + theirs),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 0 called " + ours), std::string::npos) << text;
  }

  LoopbackGroup group_{kRanks, kStageBytes};
  Execution execution_{group_.transport(0), 0};
  Schedule schedule_;
  PreparedCall call_;
  std::array<std::byte, 8> input_{};
  std::array<std::byte, 32> output_{};
};

TEST_F(DisagreementTest, NobodyDisagreesWhileOthersAreMerelyLate) {
  Disagreement found;
  EXPECT_FALSE(execution_.FindDisagreement(&found));
  Enter(7);
  EXPECT_FALSE(execution_.FindDisagreement(&found));
  Arrive(2, 0, Collective::kAllGather, 7);
  Arrive(1, kOtherLane, Collective::kReduceScatter, 6);
  Arrive(3, kOtherLane, Collective::kReduceScatter, 8);
  EXPECT_FALSE(execution_.FindDisagreement(&found));
}

TEST_F(DisagreementTest, ACallUnderTheSameNumberInTheOtherLaneIsFound) {
  Enter(7);
  Arrive(2, kOtherLane, Collective::kReduceScatter, 7);
  ExpectFound(2, "reduce_scatter", "all_gather");
}

TEST_F(DisagreementTest, AnotherCallInTheSameLaneIsFoundBehindARankThatIsLate) {
  Enter(7);
  Arrive(3, 0, Collective::kBroadcast, 7);
  ExpectFound(3, "broadcast", "all_gather");
}

TEST_F(DisagreementTest, APeerThatWentOnIsFoundByTheCallItMadeInstead) {
  Enter(7);
  Arrive(1, kOtherLane, Collective::kReduceScatter, 7);
  Arrive(1, 0, Collective::kAllGather, 8);
  ExpectFound(1, "reduce_scatter(int32, 8 elements) seq 7", "all_gather(int32, 8 elements) seq 7");
}

TEST_F(DisagreementTest, ARankThatWentOnFindsTheCallItMadeItself) {
  Enter(8);
  Arrive(0, kOtherLane, Collective::kReduceScatter, 7);
  Arrive(3, 0, Collective::kBroadcast, 7);
  ExpectFound(3, "broadcast(int32, 8 elements) seq 7", "reduce_scatter(int32, 8 elements) seq 7");
}

TEST_F(DisagreementTest, WhatIsNotExplainedYetSaysSo) {
  Enter(7);
  Arrive(1, 0, Collective::kAllGather, 8);
  Disagreement found;
  ASSERT_TRUE(execution_.FindDisagreement(&found));
  EXPECT_FALSE(found.explained);
  EXPECT_EQ(found.peer, 1);
  // Another rank's disagreement needs no patience.
  Arrive(3, kOtherLane, Collective::kReduceScatter, 7);
  ExpectFound(3, "reduce_scatter", "all_gather");
}

TEST_F(DisagreementTest, ACallOfAnotherNumberNeverMatches) {
  Enter(7);
  for (int rank = 1; rank < kRanks; ++rank) Arrive(rank, 0, Collective::kAllGather, 8);
  const Result<Execution::Outcome> outcome = execution_.Advance();
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome.value(), Execution::Outcome::kBlocked);
}

TEST_F(DisagreementTest, ARefusalInTheOtherLaneSaysThatItWasOne) {
  Enter(7);
  Fingerprint fingerprint;
  fingerprint.collective = Collective::kReduceScatter;
  fingerprint.sequence = 7;
  Execution(group_.transport(1), kOtherLane).Refuse(fingerprint);
  Disagreement found;
  ASSERT_TRUE(execution_.FindDisagreement(&found));
  EXPECT_NE(found.mismatch.message().find("refused its own call of reduce_scatter"),
            std::string::npos)
      << found.mismatch.message();
}

TEST_F(DisagreementTest, AWaitingRefusalFindsACallInTheOtherLane) {
  Fingerprint fingerprint;
  fingerprint.collective = Collective::kAllGather;
  fingerprint.sequence = 7;
  execution_.Refuse(fingerprint);
  EXPECT_FALSE(execution_.MayArrive());
  Arrive(1, 0, Collective::kAllGather, 7);
  Disagreement found;
  EXPECT_FALSE(execution_.FindDisagreement(&found));
  Arrive(2, kOtherLane, Collective::kReduceScatter, 7);
  EXPECT_TRUE(execution_.FindDisagreement(&found));
  EXPECT_EQ(found.peer, 2);
}

}  // namespace
}  // namespace tidegate
