#pragma once

#include <memory>
#include <utility>

#include <c10/core/Storage.h>

#include "common/inline_vector.h"
#include "common/recycled.h"

namespace tidegate {

/// Memory of tensors. Storages, not tensors: releasing the last reference to a tensor that Python
/// knows takes the GIL, releasing that to its memory seldom does.
using Memory = InlineVector<c10::Storage, 4>;

/// Something for an operation to hold while it uses `memory`.
inline std::shared_ptr<void> KeepAlive(Memory memory) {
  return MakeRecycled<Memory>(std::move(memory));
}

}  // namespace tidegate
