#include "offload/pipelined_step.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "offload/step_runner.h"
#include "offload/transfer/host_lane.h"
#include "tests/unit/offload/tensors.h"

namespace tidegate::offload::testing {
namespace {

using ::testing::HasSubstr;

TimePoint Soon() { return SteadyClock().Now() + std::chrono::seconds(60); }

/// A device whose memory is the host's: gradients on it, and the parameters that come to it.
struct Device {
  explicit Device(Tensors& host, bool keeps_gradients) {
    for (std::size_t t = 0; t < host.tensors.size(); ++t) {
      gradients.push_back(host.memory[t][0]);
      parameters.emplace_back(gradients[t].size(), -1.0f);
    }
    for (std::size_t t = 0; t < host.tensors.size(); ++t) {
      auto& room = host.memory[t][0];
      std::fill(room.begin(), room.end(), NAN);
      PipelinedTensor tensor;
      tensor.host = host.tensors[t];
      if (!keeps_gradients) tensor.host.operands.gradient = nullptr;
      tensor.device_gradient = gradients[t].data();
      tensor.device_parameter = parameters[t].data();
      tensors.push_back(tensor);
    }
  }

  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> parameters;
  std::vector<PipelinedTensor> tensors;
};

std::shared_ptr<Arena> MakeArena() {
  return Arena::Create(NodeSegment::Create({}).value(), 0, {.pinning = Pinning::kOff}).value();
}

struct Lanes {
  explicit Lanes(std::size_t capacity = 4, const HostLane::CopyFunction& copy = nullptr)
      : in(HostLane::Create(Direction::kDeviceToHost, capacity, copy).value()),
        out(HostLane::Create(Direction::kHostToDevice, capacity, copy).value()) {}
  std::unique_ptr<HostLane> in, out;
};

void ExpectStates(const Tensors& run, const Tensors& expected) {
  for (std::size_t t = 0; t < run.memory.size(); ++t)
    for (std::size_t part : {1, 2, 3})
      ASSERT_EQ(run.memory[t][part], expected.memory[t][part]) << t << " " << part;
}

/// Threads, elements of a chunk, chunks ahead, room of a lane.
using Shape = std::tuple<int, std::size_t, std::size_t, std::size_t>;

class PipelinedStepTest : public ::testing::TestWithParam<Shape> {
 protected:
  ThreadPool pool_{Places(std::get<0>(GetParam()))};
  std::shared_ptr<Arena> arena_ = MakeArena();
  Lanes lanes_{std::get<3>(GetParam())};
  PipelinedStep step_{
      pool_,
      arena_,
      *lanes_.in,
      *lanes_.out,
      {.chunk_elements = std::get<1>(GetParam()), .chunks_ahead = std::get<2>(GetParam())}};
};

TEST_P(PipelinedStepTest, HasTheBitsOfOneCallOnEachTensor) {
  Tensors run(kCounts), expected(kCounts);
  Device device(run, false);
  for (int i = 0; i < 2; ++i) {
    expected.StepEach();
    std::vector<double> squares(kCounts.size());
    ASSERT_TRUE(step_.Run(device.tensors, squares, Soon()).ok());
    ExpectStates(run, expected);
    for (std::size_t t = 0; t < kCounts.size(); ++t)
      EXPECT_EQ(device.parameters[t], expected.memory[t][1]) << t;
    std::vector<double> sums(kCounts.size());
    StepRunner runner(pool_);
    ASSERT_TRUE(runner.Sums(expected.tensors, 0.5f, sums).ok());
    EXPECT_EQ(squares, sums);
  }
}

TEST_P(PipelinedStepTest, ClippingOverlappedWithTheNextForwardHasTheBitsOfClippingFirst) {
  Tensors run(kCounts), expected(kCounts);
  Device device(run, true);
  const std::size_t n = kCounts.size();
  const auto clip = [](std::span<StepTensor*> tensors, const std::vector<double>& squares) {
    double total = 0;
    for (const double square : squares) total += square;
    const double factor = std::min(1.0, 0.25 / (std::sqrt(total) + 1e-6));
    EXPECT_LT(factor, 1);
    for (StepTensor* tensor : tensors)
      tensor->coefficients = CoefficientsOf(Hyperparameters(), 3, factor, 0);
  };
  // Blocking, on the host.
  std::vector<double> squares(n);
  StepRunner runner(pool_);
  ASSERT_TRUE(runner.Sums(expected.tensors, 1.0f, squares).ok());
  std::vector<StepTensor*> hosts;
  for (StepTensor& tensor : expected.tensors) hosts.push_back(&tensor);
  clip(hosts, squares);
  ASSERT_TRUE(runner.Update(expected.tensors).ok());
  // Overlapped: a forward pass uses each tensor as soon as it is there.
  std::vector<double> fetched(n);
  ASSERT_TRUE(step_.FetchGradients(device.tensors, 1.0f, fetched, Soon()).ok());
  EXPECT_EQ(fetched, squares);
  hosts.clear();
  for (PipelinedTensor& tensor : device.tensors) {
    hosts.push_back(&tensor.host);
    tensor.device_gradient = nullptr;
  }
  clip(hosts, fetched);
  ASSERT_TRUE(step_.Start(device.tensors, {}, Soon()).ok());
  for (std::size_t t = 0; t < n; ++t) {
    ASSERT_TRUE(step_.Wait(t, Soon()).ok());
    EXPECT_EQ(device.parameters[t], expected.memory[t][1]) << t;
  }
  ASSERT_TRUE(step_.Finish().ok());
  ExpectStates(run, expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PipelinedStepTest,
                         ::testing::Values(Shape{1, 1, 1, 1}, Shape{2, 65536, 3, 2},
                                           Shape{2, 131072, 2, 16}, Shape{3, 1 << 20, 3, 4},
                                           Shape{2, 1 << 30, 1, 64}));

TEST(PipelinedStepErrorsTest, ALaneThatFailsEndsTheStepAndItsWaits) {
  std::atomic<int> copies{0};
  Lanes lanes(2, [&copies](const Chunk& chunk) -> Status {
    if (++copies == 5) return {StatusCode::kInternal, "the cable is loose"};
    std::memcpy(chunk.destination, chunk.source, chunk.bytes);
    return {};
  });
  ThreadPool pool(Places(2));
  PipelinedStep step(pool, MakeArena(), *lanes.in, *lanes.out, {.chunk_elements = 1});
  Tensors run(kCounts);
  Device device(run, false);
  ASSERT_TRUE(step.Start(device.tensors, {}, Soon()).ok());
  const Status waited = step.Wait(kCounts.size() - 1, Soon());
  EXPECT_THAT(waited.message(), HasSubstr("the cable is loose"));
  EXPECT_THAT(step.Finish().message(), HasSubstr("the cable is loose"));
  // And every later one.
  EXPECT_FALSE(step.Run(device.tensors, {}, Soon()).ok());
}

TEST(PipelinedStepErrorsTest, AWaitEndsAtItsDeadlineAndTheStepAtIts) {
  std::atomic<bool> blocked{true};
  std::atomic<bool> copying{false};
  Lanes lanes(2, [&](const Chunk& chunk) -> Status {
    copying = true;
    while (blocked) std::this_thread::yield();
    std::memcpy(chunk.destination, chunk.source, chunk.bytes);
    return {};
  });
  ThreadPool pool(Places(1));
  PipelinedStep step(pool, MakeArena(), *lanes.in, *lanes.out);
  Tensors run({5000});
  Device device(run, false);
  const TimePoint soon = SteadyClock().Now() + std::chrono::milliseconds(100);
  ASSERT_TRUE(step.Start(device.tensors, {}, soon).ok());
  EXPECT_EQ(step.Wait(0, SteadyClock().Now() + std::chrono::milliseconds(10)).code(),
            StatusCode::kTimeout);
  while (!copying) std::this_thread::yield();
  // Until the step has given its lanes up. It then waits for the copy that is being made.
  EXPECT_EQ(lanes.in->Wait({1}, Soon()).code(), StatusCode::kTimeout);
  EXPECT_GE(SteadyClock().Now(), soon);
  blocked = false;
  EXPECT_EQ(step.Finish().code(), StatusCode::kTimeout);
}

TEST(PipelinedStepErrorsTest, WhatCannotBeIsRefusedBeforeAnythingIsCopied) {
  Lanes lanes;
  ThreadPool pool(Places(1));
  PipelinedStep step(pool, MakeArena(), *lanes.in, *lanes.out);
  Tensors run({5000});
  Device device(run, false);
  std::vector<double> squares(1);
  EXPECT_THAT(step.FetchGradients(device.tensors, 1, squares, Soon()).message(),
              HasSubstr("tensor 0 has no host memory for its gradient"));
  device.tensors[0].device_gradient = nullptr;
  EXPECT_THAT(step.Run(device.tensors, {}, Soon()).message(),
              HasSubstr("tensor 0 has no gradient"));
  EXPECT_TRUE(step.Finish().ok());
}

TEST(PipelinedStepErrorsTest, AStepBeginsAfterTheLastOnesFinish) {
  Lanes lanes;
  ThreadPool pool(Places(1));
  PipelinedStep step(pool, MakeArena(), *lanes.in, *lanes.out);
  Tensors run({5000});
  Device device(run, false);
  ASSERT_TRUE(step.Start(device.tensors, {}, Soon()).ok());
  EXPECT_EQ(step.Start(device.tensors, {}, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(step.Finish().ok());
  EXPECT_TRUE(step.Run(device.tensors, {}, Soon()).ok());
}

}  // namespace
}  // namespace tidegate::offload::testing
