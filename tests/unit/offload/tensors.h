#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "offload/threads/thread_pool.h"
#include "offload/tile_space.h"

namespace tidegate::offload::testing {

/// An AdamW step over float32 tensors, and the memory for it: gradient, parameter, exp_avg and
/// exp_avg_sq of each.
struct Tensors {
  explicit Tensors(const std::vector<std::size_t>& counts, double factor = 0.5) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const Hyperparameters hyperparameters;
    memory.reserve(counts.size());
    for (const std::size_t count : counts) {
      auto& own = memory.emplace_back();
      for (auto& values : own) {
        values.resize(count);
        for (float& value : values) value = std::abs(normal(random));
      }
      StepTensor tensor;
      tensor.update = FindUpdate(hyperparameters, {}).value();
      tensor.sums = FindSums(ElementType::kFloat32);
      tensor.operands = {.count = count,
                         .gradient = own[0].data(),
                         .parameter = own[1].data(),
                         .states = {own[2].data(), own[3].data()}};
      tensor.coefficients = CoefficientsOf(hyperparameters, 3, factor, 0);
      tensors.push_back(tensor);
    }
  }

  /// The step by one call for each tensor, on this thread.
  void StepEach() {
    for (const StepTensor& tensor : tensors)
      tensor.update(tensor.operands, 0, tensor.operands.count, tensor.coefficients, nullptr);
  }

  std::vector<std::array<std::vector<float>, 4>> memory;
  std::vector<StepTensor> tensors;
};

/// Threads that are not bound to processors.
inline std::vector<ThreadPlace> Places(int threads) {
  return std::vector<ThreadPlace>(static_cast<std::size_t>(threads));
}

/// Sizes below, at and above those of blocks and tiles, so that pieces are cut and bundled.
inline const std::vector<std::size_t> kCounts = {0,     1,      4095,  4096,   4097, 65535, 65536,
                                                 65537, 200001, 16384, 100000, 0,    3};

}  // namespace tidegate::offload::testing
