#include "common/ipc/process_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace tidegate {
namespace {

/// The kernel moves no more at once.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

void* Pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
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
    const auto done = static_cast<std::size_t>(read);
    address += done;
    to += done;
    bytes -= done;
  }
  return Status();
}

bool OthersCanRead(const std::byte* data, std::size_t bytes) {
  if (bytes == 0) return true;
  std::byte ends[2];
  const iovec local{.iov_base = ends, .iov_len = sizeof(ends)};
  const iovec remote[2] = {{.iov_base = const_cast<std::byte*>(data), .iov_len = 1},
                           {.iov_base = const_cast<std::byte*>(data + bytes - 1), .iov_len = 1}};
  return process_vm_readv(getpid(), &local, 1, remote, 2, 0) == 2;
}

}  // namespace tidegate
