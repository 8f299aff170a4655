#pragma once

#include <cstdint>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "common/status.h"
#include "tests/unit/collectives/support/collective_case.h"

namespace tidegate::testing {

/// What a rank moves between its own memory and that of others, by who does the moving.
struct MovedBytes {
  std::uint64_t put = 0;   ///< Into the stages of others.
  std::uint64_t read = 0;  ///< From the stages, or inputs, of others.
  bool operator==(const MovedBytes&) const = default;
  MovedBytes& operator+=(const MovedBytes& other) {
    put += other.put;
    read += other.read;
    return *this;
  }
};

/// By rank, what `algorithm` moves for `one`: between nodes what it claims to put, inside a node
/// what the verifier counts. An error where the verifier rejects it.
Result<std::vector<MovedBytes>> ClaimedBytes(const NamedAlgorithm& algorithm,
                                             const Placement& placement, const CollectiveCase& one);

}  // namespace tidegate::testing
