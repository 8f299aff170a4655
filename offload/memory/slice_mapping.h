#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "common/status.h"

namespace tidegate::offload {

enum class Access { kReadOnly, kReadWrite };

/// One slice of a node's segment in the address space of this process; unmapped when it goes. It
/// keeps the memory alive, whatever becomes of its rank. Movable, not copyable. Read-only
/// operations from any thread.
class SliceMapping {
 public:
  SliceMapping() = default;
  SliceMapping(SliceMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        access_(other.access_) {}
  SliceMapping& operator=(SliceMapping&& other) noexcept;
  ~SliceMapping();

  /// Maps bytes [offset, offset + bytes) of `fd`, both multiples of the huge page size, at an
  /// address that is one, too, so that huge pages can be mapped as such. No page is touched or
  /// reserved. kResourceExhausted where the address space is too small (ulimit -v).
  static Result<SliceMapping> Map(int fd, std::size_t offset, std::size_t bytes, Access access);

  /// Where it begins; for writing only with kReadWrite.
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  /// [offset, offset + bytes) of the slice, which its rank named: what lies outside its blocks may
  /// have no pages, and touching that takes memory that nobody counted. kInvalidArgument beyond
  /// the end.
  Result<std::span<const std::byte>> Read(std::size_t offset, std::size_t bytes) const;
  /// The same for writing; kInvalidArgument for a read-only mapping, too.
  Result<std::span<std::byte>> Write(std::size_t offset, std::size_t bytes) const;

 private:
  SliceMapping(std::byte* data, std::size_t bytes, Access access)
      : data_(data), bytes_(bytes), access_(access) {}
  Status CheckBounds(std::size_t offset, std::size_t bytes) const;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Access access_ = Access::kReadOnly;
};

}  // namespace tidegate::offload
