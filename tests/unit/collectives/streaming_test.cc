#include "collectives/streaming.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace tidegate {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kPart = 100;
constexpr std::size_t kWhole = kRanks * kPart;

class StreamingTest : public ::testing::Test {
 protected:
  Block Here(std::size_t bytes) { return {memory_.data(), bytes}; }
  Block There(std::size_t bytes) { return {memory_.data() + kWhole, bytes}; }
  static Blocks Parts(Block whole) {
    Blocks parts;
    for (std::size_t i = 0; i < kRanks; ++i) parts.push_back({whole.data + i * kPart, kPart});
    return parts;
  }
  CollectiveRequest Make(Collective collective, Blocks inputs, Blocks outputs) {
    return {.collective = collective, .inputs = std::move(inputs), .outputs = std::move(outputs)};
  }

  std::vector<std::byte> memory_{2 * kWhole};
};

TEST_F(StreamingTest, CountsWhatAllRanksRead) {
  const auto gather = Make(Collective::kAllGather, {Here(kPart)}, Parts(There(kWhole)));
  EXPECT_EQ(BytesOfAllRanks(gather, kRanks, false), kRanks * (kWhole + kPart));
  EXPECT_EQ(BytesOfAllRanks(gather, kRanks, true), kRanks * kWhole);
  const auto scatter = Make(Collective::kReduceScatter, Parts(Here(kWhole)), {There(kPart)});
  EXPECT_EQ(BytesOfAllRanks(scatter, kRanks, false), kRanks * (kWhole + kPart));
  EXPECT_EQ(BytesOfAllRanks(scatter, kRanks, true), kRanks * kWhole);
  const auto reduce = Make(Collective::kAllReduce, {Here(kWhole)}, {There(kWhole)});
  EXPECT_EQ(BytesOfAllRanks(reduce, kRanks, false), 2 * kRanks * kWhole);
  EXPECT_EQ(BytesOfAllRanks(reduce, kRanks, true), kRanks * kWhole);
  const auto turn = Make(Collective::kAllToAll, Parts(Here(kWhole)), Parts(There(kWhole)));
  EXPECT_EQ(BytesOfAllRanks(turn, kRanks, false), 2 * kRanks * kWhole);
}

TEST_F(StreamingTest, TheRootAndTheOthersCountTheSame) {
  const auto count = [&](const CollectiveRequest& request) {
    return BytesOfAllRanks(request, kRanks, false);
  };
  EXPECT_EQ(count(Make(Collective::kBroadcast, {Here(kWhole)}, {Here(kWhole)})), kRanks * kWhole);
  EXPECT_EQ(count(Make(Collective::kBroadcast, {}, {There(kWhole)})), kRanks * kWhole);
  EXPECT_EQ(count(Make(Collective::kGather, {Here(kPart)}, Parts(There(kWhole)))), 2 * kWhole);
  EXPECT_EQ(count(Make(Collective::kGather, {Here(kPart)}, {})), 2 * kWhole);
  EXPECT_EQ(count(Make(Collective::kScatter, Parts(Here(kWhole)), {There(kPart)})), 2 * kWhole);
  EXPECT_EQ(count(Make(Collective::kScatter, {}, {There(kPart)})), 2 * kWhole);
  EXPECT_EQ(count(Make(Collective::kReduce, {Here(kWhole)}, {There(kWhole)})),
            (kRanks + 1) * kWhole);
  EXPECT_EQ(count(Make(Collective::kReduce, {Here(kWhole)}, {})), (kRanks + 1) * kWhole);
  EXPECT_EQ(count(Make(Collective::kBarrier, {}, {})), 0U);
}

TEST_F(StreamingTest, TheLeastOfThemBypassesTheCaches) {
  const auto reduce = Make(Collective::kAllReduce, {Here(kWhole)}, {There(kWhole)});
  EXPECT_TRUE(WritesPastCaches(reduce, kRanks, false, 2 * kRanks * kWhole));
  EXPECT_FALSE(WritesPastCaches(reduce, kRanks, false, 2 * kRanks * kWhole + 1));
}

TEST_F(StreamingTest, WhatIsReducedInPlaceNeverDoes) {
  const auto reduce = Make(Collective::kAllReduce, {Here(kWhole)}, {Here(kWhole)});
  EXPECT_FALSE(WritesPastCaches(reduce, kRanks, true, 0));
  const auto gather = Make(Collective::kAllGather, {Parts(There(kWhole))[1]}, Parts(There(kWhole)));
  EXPECT_TRUE(WritesPastCaches(gather, kRanks, true, kRanks * kWhole));
}

TEST_F(StreamingTest, KnowsAnOutputThatIsAnInput) {
  const Blocks parts = Parts(Here(kWhole));
  EXPECT_TRUE(IsInPlace(Make(Collective::kAllGather, {parts[2]}, parts)));
  EXPECT_FALSE(IsInPlace(Make(Collective::kAllGather, {There(kPart)}, parts)));
  EXPECT_TRUE(IsInPlace(Make(Collective::kReduceScatter, parts, {parts[1]})));
  EXPECT_FALSE(IsInPlace(Make(Collective::kGather, {parts[1]}, {})));
  EXPECT_FALSE(IsInPlace(Make(Collective::kAllReduce, {Here(0)}, {Here(0)})));
}

}  // namespace
}  // namespace tidegate
