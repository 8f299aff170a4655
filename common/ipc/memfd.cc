#include "common/ipc/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>

#include "common/machine/machine.h"
#include "common/units.h"

namespace tidegate {
namespace {

// Small enough that fallocate, which undoes all its work when a signal arrives, finishes between
// two ticks of a profiler's timer, and that ranks which allocate together see each other's share.
constexpr std::size_t kCommitStep = std::size_t{64} << 20;

Status AllocationStatus(int error_number, std::size_t size, std::string_view remedy) {
  const Status status =
      ErrnoStatus(error_number, "cannot allocate " + std::to_string(size) + " bytes (" +
                                    FormatBytes(size) + ") of shared memory");
  return Status(status.code(), status.message() + "; " + std::string(remedy));
}

// MFD_HUGE_2MB, which not every C library names: the logarithm of the size above bit 26.
constexpr unsigned kHuge2MiB = 21U << 26;

constexpr std::string_view kMemoryRemedy =
    "free memory, or raise the memory limit of this container or job";
constexpr std::string_view kFileSizeRemedy = "raise the file size limit (ulimit -f)";

/// Bytes of [offset, offset + size) that have no pages yet.
std::size_t Uncommitted(int fd, std::size_t offset, std::size_t size) {
  std::size_t missing = 0;
  const std::size_t end = offset + size;
  for (std::size_t position = offset; position < end;) {
    const off_t hole = lseek(fd, static_cast<off_t>(position), SEEK_HOLE);
    if (hole < 0 || static_cast<std::size_t>(hole) >= end) break;
    const off_t data = lseek(fd, hole, SEEK_DATA);
    position = data < 0 ? end : std::min(end, static_cast<std::size_t>(data));
    missing += position - static_cast<std::size_t>(hole);
  }
  return missing;
}

/// True when growing a file to `size` would exceed RLIMIT_FSIZE. Asked beforehand because the
/// kernel answers such a call with SIGXFSZ, which ends a process that does not ignore it.
bool ExceedsFileSizeLimit(std::size_t size) {
  rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
         size > limit.rlim_cur;
}

}  // namespace

Result<UniqueFd> CreateMemfd(std::string_view label, std::size_t size, MemfdPages pages) {
  if (size > static_cast<std::size_t>(std::numeric_limits<off_t>::max()) ||
      ExceedsFileSizeLimit(size)) {
    return AllocationStatus(EFBIG, size, kFileSizeRemedy);
  }
  const unsigned huge = pages == MemfdPages::kHugePool ? MFD_HUGETLB | kHuge2MiB : 0;
  UniqueFd fd(memfd_create(std::string(label).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | huge));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return AllocationStatus(errno, size, kMemoryRemedy);
  }
  // The size is final for everyone, the creator included: nobody can shrink it under a mapping,
  // lift the seals, or make FileSize() outgrow what was agreed.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "sealing a memfd");
  }
  return fd;
}

Result<std::size_t> FileSize(int fd) {
  struct stat file;
  if (fstat(fd, &file) != 0) return ErrnoStatus(errno, "fstat of a shared-memory file");
  return static_cast<std::size_t>(file.st_size);
}

Status CommitPages(int fd, std::size_t offset, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    // The kernel rarely refuses memory: it kills processes for it, and for a memfd, whose pages it
    // charges to nobody in particular, the wrong ones.
    const std::uint64_t available = AvailableMemory();
    if (const std::size_t missing = Uncommitted(fd, offset + done, size - done);
        missing > available) {
      return AllocationStatus(
          ENOMEM, size, FormatBytes(available) + " are available; " + std::string(kMemoryRemedy));
    }
    const std::size_t step = std::min(kCommitStep, size - done);
    if (fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(step)) == 0) {
      done += step;
    } else if (errno != EINTR) {
      return AllocationStatus(errno, size, kMemoryRemedy);
    }
  }
  return Status();
}

Status ReleasePages(int fd, std::size_t offset, std::size_t size) {
  if (size == 0) return Status();
  int error = 0;
  do {
    error = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                      static_cast<off_t>(size)) == 0
                ? 0
                : errno;
  } while (error == EINTR);
  if (error == 0) return Status();
  return ErrnoStatus(error, "giving " + FormatBytes(size) + " of shared memory back");
}

}  // namespace tidegate
