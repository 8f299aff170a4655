#include "offload/memory/slice_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/units.h"
#include "offload/memory/byte_range.h"
#include "offload/memory/page_kind.h"

namespace tidegate::offload {

SliceMapping& SliceMapping::operator=(SliceMapping&& other) noexcept {
  if (this != &other) {
    const SliceMapping released(data_, bytes_, access_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    access_ = other.access_;
  }
  return *this;
}

SliceMapping::~SliceMapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<SliceMapping> SliceMapping::Map(int fd, std::size_t offset, std::size_t bytes,
                                       Access access) {
  TIDEGATE_CHECK(bytes > 0 && bytes % kHugePageBytes == 0 && offset % kHugePageBytes == 0);
  // Addresses first, more than are needed: the kernel aligns huge pages of a pool only.
  const std::size_t reserved = bytes + kHugePageBytes;
  void* const address =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    const Status status = ErrnoStatus(
        errno, "cannot reserve " + FormatBytes(reserved) + " of addresses for the arena");
    return Status(status.code(),
                  status.message() + "; raise the limit of the address space (ulimit -v)");
  }
  auto* const first = static_cast<std::byte*>(address);
  const std::size_t head = RoundUp(reinterpret_cast<std::uintptr_t>(first), kHugePageBytes) -
                           reinterpret_cast<std::uintptr_t>(first);
  if (head > 0) munmap(first, head);
  munmap(first + head + bytes, kHugePageBytes - head);
  SliceMapping mapping(first + head, bytes, access);
  // MAP_NORESERVE: the pool's pages are taken one by one as they are committed, not all of them
  // now for a slice that is larger than what will be used.
  const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  if (mmap(first + head, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
           static_cast<off_t>(offset)) == MAP_FAILED)
    return ErrnoStatus(errno, "mmap of " + FormatBytes(bytes) + " of the arena");
  return mapping;
}

Status SliceMapping::CheckBounds(std::size_t offset, std::size_t bytes) const {
  if (offset <= bytes_ && bytes <= bytes_ - offset) return Status();
  return Status(StatusCode::kInvalidArgument,
                std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                    " lie outside of a slice of " + std::to_string(bytes_) + " bytes");
}

Result<std::span<const std::byte>> SliceMapping::Read(std::size_t offset, std::size_t bytes) const {
  TIDEGATE_RETURN_IF_ERROR(CheckBounds(offset, bytes));
  return std::span<const std::byte>(data_ + offset, bytes);
}

Result<std::span<std::byte>> SliceMapping::Write(std::size_t offset, std::size_t bytes) const {
  TIDEGATE_RETURN_IF_ERROR(CheckBounds(offset, bytes));
  if (access_ != Access::kReadWrite)
    return Status(StatusCode::kInvalidArgument, "this mapping of a slice is for reading only");
  return std::span<std::byte>(data_ + offset, bytes);
}

}  // namespace tidegate::offload
