#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "tests/unit/collectives/support/local_group.h"

namespace tidegate {
namespace {

using testing::BlockOf;
using testing::LocalGroup;
using Values = std::vector<std::int32_t>;

/// Memory of one rank for an all-gather (lane 0) and a reduce-scatter (lane 1) of one element.
struct Calls {
  explicit Calls(int ranks)
      : shard(1, 1),
        whole(static_cast<std::size_t>(ranks), -7),
        parts(static_cast<std::size_t>(ranks), 1),
        sum(1, -7) {}

  CollectiveRequest Gather() {
    return {.collective = Collective::kAllGather,
            .dtype = DataType::kInt32,
            .inputs = {BlockOf(shard)},
            .outputs = Split(whole)};
  }
  CollectiveRequest Scatter() {
    return {.collective = Collective::kReduceScatter,
            .dtype = DataType::kInt32,
            .reduce_op = ReduceOp::kSum,
            .inputs = Split(parts),
            .outputs = {BlockOf(sum)}};
  }
  static Blocks Split(Values& values) {
    Blocks blocks;
    for (std::int32_t& value : values) blocks.push_back({reinterpret_cast<std::byte*>(&value), 4});
    return blocks;
  }

  Values shard, whole, parts, sum;
};

/// What the odd rank does instead of one all-gather.
enum class Odd { kScatter, kScatterAndGather, kScatters, kCoalesced };

struct Case {
  int ranks;
  bool usual_async, odd_async;
  Odd odd;
  bool usual_coalesced;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int ranks : {2, 3, 4})
    for (const bool usual_async : {false, true})
      for (const bool odd_async : {false, true})
        for (const Odd odd :
             {Odd::kScatter, Odd::kScatterAndGather, Odd::kScatters, Odd::kCoalesced})
          for (const bool coalesced : {false, true})
            // A sync call that fails is not followed by another.
            if (odd_async || odd == Odd::kScatter || odd == Odd::kCoalesced)
              cases.push_back({ranks, usual_async, odd_async, odd, coalesced});
  return cases;
}

class CrossLaneTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, CrossLaneTest, ::testing::ValuesIn(Cases()));

/// The deadline is an hour away: a rank that is not told hangs until the test's own limit.
TEST_P(CrossLaneTest, EverybodyIsToldBothCallsOfTheNumber) {
  const Case& c = GetParam();
  for (int odd_rank = 0; odd_rank < c.ranks; odd_rank += c.ranks - 1) {
    LocalGroup group(c.ranks, std::chrono::hours(1));
    // Two matching calls first, one a lane.
    group.RunAll([&](int, Communicator& communicator) {
      Calls warm(c.ranks);
      ASSERT_TRUE(communicator.Submit({warm.Gather()}, {.async = false})->status().ok());
      ASSERT_TRUE(communicator.Submit({warm.Scatter()}, {.async = false})->status().ok());
      EXPECT_EQ(warm.sum[0], c.ranks);
    });
    group.RunAll([&](int rank, Communicator& communicator) {
      Calls one(c.ranks), two(c.ranks), three(c.ranks);
      std::vector<std::shared_ptr<Operation>> operations;
      const bool async = rank == odd_rank ? c.odd_async : c.usual_async;
      const auto submit = [&](Requests requests) {
        operations.push_back(communicator.Submit(std::move(requests), {.async = async}));
      };
      if (rank != odd_rank) {
        if (c.usual_coalesced) {
          submit({one.Gather(), two.Gather()});
        } else {
          submit({one.Gather()});
        }
      } else if (c.odd == Odd::kCoalesced) {
        submit({one.Scatter(), two.Scatter()});
      } else {
        submit({one.Scatter()});
        if (c.odd == Odd::kScatters) submit({two.Scatter()});
        if (c.odd != Odd::kScatter) submit({three.Gather()});
      }
      for (const auto& operation : operations) {
        const Status status = operation->Wait(Nanoseconds(0));
        EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
        const std::string& text = status.message();
        // After "failed on rank r: " comes the same sentence everywhere.
        const std::string said = text.substr(text.find("ranks made different calls"));
        EXPECT_NE(
            said.find("reduce_scatter(SUM, int32, " + std::to_string(c.ranks) + " elements) seq 3"),
            std::string::npos)
            << text;
        EXPECT_NE(said.find("all_gather(int32, " + std::to_string(c.ranks) + " elements) seq 3"),
                  std::string::npos)
            << text;
        EXPECT_NE(said.find("rank " + std::to_string(odd_rank)), std::string::npos) << text;
      }
      for (Calls* calls : {&one, &two, &three}) {
        EXPECT_EQ(calls->whole, Values(static_cast<std::size_t>(c.ranks), -7));
        EXPECT_EQ(calls->sum, Values(1, -7));
      }
    });
  }
}

/// Rank 0 never comes; the others disagree, and one of them has gone on.
TEST(CrossLaneLateTest, ARankThatIsLateKeepsNobodyFromBeingTold) {
  LocalGroup group(3, std::chrono::hours(1));
  Calls gathers(3), scatters(3), further(3);
  const auto gather = group[1].Submit({gathers.Gather()}, {.async = true});
  const auto scatter = group[2].Submit({scatters.Scatter()}, {.async = true});
  const auto next = group[2].Submit({further.Gather()}, {.async = true});
  for (const auto& operation : {gather, scatter, next}) {
    const Status status = operation->Wait(Nanoseconds(0));
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_NE(status.message().find("reduce_scatter(SUM, int32, 3 elements) seq 1"),
              std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("all_gather(int32, 3 elements) seq 1"), std::string::npos)
        << status.message();
  }
  const auto late = group[0].Submit({gathers.Gather()}, {.async = false});
  EXPECT_EQ(late->status().code(), StatusCode::kMismatch);
}

TEST(CrossLaneLateTest, TheSameLaneToo) {
  LocalGroup group(3, std::chrono::hours(1));
  Values few(2), many(3);
  const auto one = group[1].Submit({testing::SumOf(few)}, {.async = true});
  const auto two = group[2].Submit({testing::SumOf(many)}, {.async = true});
  for (const auto& operation : {one, two}) {
    const Status status = operation->Wait(Nanoseconds(0));
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_NE(status.message().find("2 elements"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("3 elements"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tidegate
