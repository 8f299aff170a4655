#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tidegate {

/// The mean of the two in the middle where there is no middle one. REQUIRES: values.
inline double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace tidegate
