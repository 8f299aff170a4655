#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "collectives/transport/transport.h"

namespace tidegate {
namespace {

Fingerprint AnyFingerprint() {
  return {.sequence = 7,
          .elements = 1024,
          .layout = 99,
          .collective = Collective::kAllReduce,
          .dtype = DataType::kFloat32,
          .reduce_op = ReduceOp::kSum};
}

TEST(FingerprintTest, CallsThatDifferDoNotMatch) {
  const std::vector<std::function<void(Fingerprint&)>> changes = {
      [](Fingerprint& call) { call.sequence = 8; },
      [](Fingerprint& call) { call.elements = 1023; },
      [](Fingerprint& call) { call.layout = 98; },
      [](Fingerprint& call) { call.plan = 1; },
      [](Fingerprint& call) { call.collective = Collective::kReduce; },
      [](Fingerprint& call) { call.dtype = DataType::kFloat64; },
      [](Fingerprint& call) { call.reduce_op = ReduceOp::kMax; },
      [](Fingerprint& call) { call.refused = 1; },
      [](Fingerprint& call) { call.root = 0; },
  };
  EXPECT_TRUE(Matches(AnyFingerprint(), AnyFingerprint()));
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Fingerprint other = AnyFingerprint();
    changes[i](other);
    EXPECT_FALSE(Matches(AnyFingerprint(), other)) << "change " << i;
    EXPECT_FALSE(Matches(other, AnyFingerprint())) << "change " << i;
  }
}

TEST(FingerprintTest, RanksMayPremultiplyByDifferentFactors) {
  Fingerprint other = AnyFingerprint();
  other.factor = 0.5;
  EXPECT_TRUE(Matches(AnyFingerprint(), other));
}

TEST(FingerprintTest, IsDescribedAsTheCallWasMade) {
  EXPECT_EQ(Describe(AnyFingerprint()), "all_reduce(SUM, float32, 1024 elements) seq 7");
  EXPECT_EQ(Describe({.sequence = 3,
                      .elements = 5,
                      .root = 2,
                      .collective = Collective::kBroadcast,
                      .dtype = DataType::kInt64}),
            "broadcast(int64, 5 elements, root 2) seq 3");
  EXPECT_EQ(
      Describe({.sequence = 4, .collective = Collective::kAllToAll, .dtype = DataType::kBFloat16}),
      "all_to_all(bfloat16) seq 4");
  EXPECT_EQ(Describe({.sequence = 1, .collective = Collective::kBarrier}), "barrier seq 1");
  // As a peer may have written it.
  EXPECT_EQ(Describe({.sequence = 9, .collective = static_cast<Collective>(200)}),
            "unknown collective(uint8) seq 9");
}

}  // namespace
}  // namespace tidegate
