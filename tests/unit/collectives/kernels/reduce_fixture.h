#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/reduce_targets.h"

namespace tidegate::testing {

/// Runs the kernels of one target over vectors of T, the bits of an element of the dtype.
class ReduceTest : public ::testing::TestWithParam<KernelTarget> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "this CPU has no " << NameOfTarget(GetParam());
  }

  template <typename T>
  std::vector<T> ReduceAll(DataType dtype, ReduceOp op, const std::vector<std::vector<T>>& sources,
                           const std::vector<double>& factors = {}) {
    std::vector<const std::byte*> pointers;
    for (const std::vector<T>& source : sources)
      pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
    std::vector<T> result(sources.front().size());
    FindReduceKernelFor(GetParam(), dtype,
                        op)({reinterpret_cast<std::byte*>(result.data()), pointers.data(),
                             static_cast<int>(sources.size()), result.size(), factors.data(),
                             static_cast<int>(sources.size())});
    return result;
  }

  /// One element a source, repeated so that whole vectors and a tail take part; all must agree.
  template <typename T>
  T ReduceOne(DataType dtype, ReduceOp op, std::initializer_list<T> values,
              const std::vector<double>& factors = {}) {
    std::vector<std::vector<T>> sources;
    for (T value : values) sources.emplace_back(301, value);
    const std::vector<T> result = ReduceAll(dtype, op, sources, factors);
    for (const T& value : result) EXPECT_EQ(std::memcmp(&value, &result.front(), sizeof(T)), 0);
    return result.front();
  }
};

}  // namespace tidegate::testing
