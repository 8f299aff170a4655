#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "common/status.h"

namespace tidegate {

/// Owns one shared, read-write memory mapping and unmaps it. Movable, not copyable.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// Maps bytes [0, size) of `fd` (which may be closed afterwards). Pages are not populated.
  /// kInvalidArgument when the file is smaller: touching the rest would be a SIGBUS.
  static Result<Mapping> Map(int fd, std::size_t size);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  Mapping(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tidegate
