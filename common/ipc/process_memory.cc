#include "common/ipc/process_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace tidegate {
namespace {

/// The kernel moves little more at once.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

void* Pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

#if !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ 22  // Of Linux 5.14, younger than some headers.
#endif

constexpr std::byte kReadable{};

/// Whether the kernel can bring the page of `data` in for reading, as it does for others: a third
/// of the time of reading it, and less in the way of those who do.
bool Populates(const std::byte* data) {
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return madvise(Pointer(address - address % page_bytes), page_bytes, MADV_POPULATE_READ) == 0;
}

}  // namespace

Status ReadProcessMemory(pid_t pid, std::uint64_t address, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    const iovec local{.iov_base = to, .iov_len = std::min(bytes, kMostAtOnce)};
    const iovec remote{.iov_base = Pointer(address), .iov_len = local.iov_len};
    const ssize_t read = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (read < 0) {
      const std::string what = "cannot read the memory of process " + std::to_string(pid);
      if (errno == ESRCH) return Status(StatusCode::kPeerLost, what + ": it has ended");
      if (errno == EFAULT)
        return Status(StatusCode::kInvalidArgument, what + " at " + std::to_string(address) +
                                                        ": nothing that may be read lies there");
      Status status = ErrnoStatus(errno, what);
      return Status(StatusCode::kUnsupported, status.message());
    }
    if (read == 0) return Status(StatusCode::kUnsupported, "process_vm_readv reads nothing");
    const auto done = static_cast<std::size_t>(read);
    address += done;
    to += done;
    bytes -= done;
  }
  return Status();
}

bool OthersCanRead(const std::byte* data, std::size_t bytes) {
  if (bytes == 0) return true;
  static const bool can_populate = Populates(&kReadable);
  if (can_populate) return Populates(data);
  std::byte first;
  return ReadProcessMemory(getpid(), reinterpret_cast<std::uintptr_t>(data), &first, 1).ok();
}

}  // namespace tidegate
