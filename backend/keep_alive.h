#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

namespace tidegate {

/// Something for an operation to hold while it uses `memory`.
inline std::shared_ptr<void> KeepAlive(std::vector<c10::Storage> memory) {
  return std::make_shared<std::vector<c10::Storage>>(std::move(memory));
}

}  // namespace tidegate
