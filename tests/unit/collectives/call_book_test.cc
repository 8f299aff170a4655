#include "collectives/call_book.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "tests/unit/collectives/support/algorithm_table.h"
#include "tests/unit/collectives/support/collective_case.h"

namespace tidegate {
namespace {

constexpr int kRanks = 3;
constexpr int kRank = 1;
constexpr std::size_t kStageBytes = 16384;

class CallBookTest : public ::testing::Test {
 protected:
  PreparedCall Call(const CollectiveRequest& request) {
    InlineVector<PreparedCall, 1> calls;
    EXPECT_TRUE(book_.Make({request}, ++sequence_, &calls).ok());
    EXPECT_EQ(calls.size(), 1U);
    return std::move(calls.front());
  }

  CallBook book_{testing::AlgorithmTable::Default().ForGroup(kRanks), kRank, kStageBytes};
  std::uint64_t sequence_ = 0;
};

CollectiveRequest AllReduce(std::byte* memory) {
  return {.collective = Collective::kAllReduce,
          .dtype = DataType::kFloat32,
          .reduce_op = ReduceOp::kPremulSum,
          .inputs = {{memory, 4096}},
          .outputs = {{memory, 4096}}};
}

CollectiveRequest AllGather(std::byte* memory, std::size_t bytes) {
  CollectiveRequest request{.collective = Collective::kAllGather, .dtype = DataType::kFloat32};
  request.inputs = {{memory, bytes}};
  for (std::size_t i = 0; i < kRanks; ++i) request.outputs.push_back({memory + i * bytes, bytes});
  return request;
}

void ExpectEqual(const Blocks& a, const Blocks& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].data, b[i].data);
    EXPECT_EQ(a[i].bytes, b[i].bytes);
  }
}

TEST_F(CallBookTest, WhatItRemembersIsWhatPreparingAnewGives) {
  for (const testing::CollectiveCase& test_case : testing::AllCases(kRanks, 1024, 1)) {
    SCOPED_TRACE(testing::Describe(test_case));
    std::uint64_t shape = 0;
    for (int i = 0; i < 2; ++i) {
      testing::CaseMemory memory(test_case);  // Elsewhere each time, or not.
      const CollectiveRequest request = memory.RequestFor(kRank);
      const PreparedCall call = Call(request);
      const PreparedCall anew =
          Prepare(request, *call.schedule, sequence_, kStageBytes, DataPaths());
      EXPECT_EQ(call.schedule->collective, request.collective);
      EXPECT_TRUE(Matches(call.fingerprint, anew.fingerprint));
      EXPECT_EQ(call.fingerprint.factor, anew.fingerprint.factor);
      EXPECT_EQ(call.kernel, anew.kernel);
      EXPECT_EQ(call.partial_kernel, anew.partial_kernel);
      EXPECT_EQ(call.element_bytes, anew.element_bytes);
      EXPECT_EQ(call.output_bytes, anew.output_bytes);
      EXPECT_EQ(call.wide_slots, anew.wide_slots);
      ExpectEqual(call.inputs.empty() ? request.inputs : call.inputs, anew.inputs);
      ExpectEqual(call.outputs.empty() ? request.outputs : call.outputs, anew.outputs);
      EXPECT_EQ(std::vector(call.splits.begin(), call.splits.end()),
                std::vector(anew.splits.begin(), anew.splits.end()));
      EXPECT_NE(call.shape, 0U);
      if (i > 0) {
        EXPECT_EQ(call.shape, shape);
      }
      shape = call.shape;
    }
  }
}

TEST_F(CallBookTest, CallsThatDifferInAnythingButAddressesHaveOtherShapes) {
  std::vector<std::byte> memory(4 * 4096);
  const CollectiveRequest request = AllReduce(memory.data());
  std::vector<CollectiveRequest> others(10, request);
  others[0].dtype = DataType::kFloat64;
  others[1].reduce_op = ReduceOp::kMax;
  others[2].factor = 2.0;
  others[3].copy_inputs = true;
  others[4].input_memory = InputMemory::kMalloc;
  others[5].inputs[0].bytes = others[5].outputs[0].bytes = 4092;
  others[6].factor = 0.0;
  others[7].factor = -0.0;
  others[8].collective = Collective::kReduce;
  others[8].root = 1;
  others[9] = others[8];
  others[9].root = 0;
  others[9].outputs = {};
  std::vector<std::uint64_t> shapes = {Call(request).shape};
  for (const CollectiveRequest& other : others) {
    const std::uint64_t shape = Call(other).shape;
    for (const std::uint64_t earlier : shapes) EXPECT_NE(shape, earlier);
    shapes.push_back(shape);
  }
  EXPECT_EQ(Call(AllReduce(memory.data() + 4096)).fingerprint.factor, 1.0);
  const CollectiveRequest even = AllGather(memory.data(), 1024);
  CollectiveRequest uneven = even;
  uneven.outputs[2].bytes = 512;
  EXPECT_NE(Call(even).shape, Call(uneven).shape);
}

TEST_F(CallBookTest, OneShapeBypassesTheCachesApartAndNotInPlace) {
  std::vector<std::byte> memory(2 * 4096);
  CollectiveRequest request = AllReduce(memory.data());
  PlanChoice choice = testing::AlgorithmTable::Default().ForGroup(kRanks);
  choice.paths.stream_bytes = 0;
  CallBook book{std::move(choice), kRank, kStageBytes};
  std::vector<bool> streams;
  for (std::byte* const output : {&memory[0], &memory[4096], &memory[0]}) {
    request.outputs[0].data = output;
    InlineVector<PreparedCall, 1> calls;
    ASSERT_TRUE(book.Make({request}, ++sequence_, &calls).ok());
    streams.push_back(calls.front().streaming);
    EXPECT_EQ(calls.front().shape, 1U);
  }
  EXPECT_EQ(streams, (std::vector{false, true, false}));
}

TEST_F(CallBookTest, MembersOfACoalescedCallAreNumberedAndBoundTogether) {
  std::vector<std::byte> memory(3 * 1024);
  const CollectiveRequest request = AllGather(memory.data(), 1024);
  const std::uint64_t alone = Call(request).fingerprint.layout;
  InlineVector<PreparedCall, 1> calls;
  Requests requests = {request};
  requests.push_back(AllGather(memory.data(), 512));
  ASSERT_TRUE(book_.Make(requests, 7, &calls).ok());
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].fingerprint.sequence, 7U);
  EXPECT_EQ(calls[1].fingerprint.sequence, 8U);
  EXPECT_NE(calls[0].fingerprint.layout, alone);
  EXPECT_EQ(Call(request).fingerprint.layout, alone);
}

TEST(CallBookFailureTest, ACallWithoutAPlanIsNotMade) {
  CallBook book({.choose = [](const PlanRequest&) -> Result<const Algorithm*> {
                   return Status(StatusCode::kUnsupported, "none");
                 },
                 .placement = Placement::OneNode(kRanks)},
                kRank, kStageBytes);
  InlineVector<PreparedCall, 1> calls;
  const Requests requests = {{.collective = Collective::kBarrier}};
  EXPECT_EQ(book.Make(requests, 1, &calls).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(calls.empty());
}

}  // namespace
}  // namespace tidegate
