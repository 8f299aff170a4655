#include "common/ipc/process_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

namespace tidegate {
namespace {

/// The kernel moves little more at once.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

void* Pointer(std::uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): for the kernel, which checks it
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// As process_vm_readv, of one piece.
ssize_t Read(pid_t thread, std::uint64_t address, std::byte* to, std::size_t bytes) {
  const iovec local{.iov_base = to, .iov_len = bytes};
  const iovec remote{.iov_base = Pointer(address), .iov_len = bytes};
  return process_vm_readv(thread, &local, 1, &remote, 1, 0);
}

std::string Hexadecimal(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof(text), "%#llx", static_cast<unsigned long long>(address));
  return text;
}

/// Why nothing could be read from `address` on. The kernel gives one errno for a bad address,
/// whichever side it is of.
Status ReasonOf(int error, pid_t thread, std::uint64_t address, const std::byte* to) {
  if (error == ESRCH)
    return Status(StatusCode::kPeerLost, "process " + std::to_string(thread) + " has ended");
  if (error == EFAULT) {
    std::byte first;
    if (Read(thread, address, &first, 1) == 1)
      return Status(StatusCode::kInternal, "what was read cannot be written to " +
                                               Hexadecimal(reinterpret_cast<std::uintptr_t>(to)) +
                                               " of this process");
    return Status(StatusCode::kInvalidArgument, "nothing that may be read lies at " +
                                                    Hexadecimal(address) + " of process " +
                                                    std::to_string(thread));
  }
  const Status status =
      ErrnoStatus(error, "cannot read the memory of process " + std::to_string(thread));
  return Status(StatusCode::kUnsupported, status.message());
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

Status ReadProcessMemory(pid_t thread, std::uint64_t address, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t read = Read(thread, address, to, std::min(bytes, kMostAtOnce));
    if (read < 0) return ReasonOf(errno, thread, address, to);
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
