#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/status.h"

namespace tidegate::offload {

/// Whether memory can be had without something being killed for it. The kernel rarely refuses: it
/// kills, and for shared memory the wrong process. Take is externally locked, Check from any
/// thread.
class MemoryRoom {
 public:
  using Available = std::function<std::uint64_t()>;

  /// `available`: AvailableMemory() of common/machine, or what a test says.
  explicit MemoryRoom(Available available = nullptr);

  /// To be called before `bytes` are taken: kResourceExhausted, saying by how much the machine or
  /// the control group is short. Looks at the machine unless it has lately found plenty: most calls
  /// for a few pages cost nothing (a look costs some 0.1 ms).
  Status Take(std::size_t bytes);

  /// The same for `bytes` that are being taken, at which others may be, too; always looks.
  Status Check(std::size_t bytes) const;

 private:
  Available available_;
  std::size_t credit_ = 0;  ///< Bytes that may be taken without a look.
};

}  // namespace tidegate::offload
