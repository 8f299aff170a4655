#include "offload/memory/page_kind.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "common/ipc/memfd.h"
#include "common/units.h"
#include "offload/memory/slice_mapping.h"

// Of Linux 5.14 and 6.1, younger than some headers.
#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif
#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25
#endif

namespace tidegate::offload {
namespace {

constexpr const char* kPool = "sys/kernel/mm/hugepages/hugepages-2048kB/";

std::size_t ReadCount(const std::string& file) {
  std::ifstream stream(file);
  std::size_t count = 0;
  return stream >> count ? count : 0;
}

/// The word in brackets of a line such as "always [madvise] never"; empty where there is none.
std::string ReadChoice(const std::string& file) {
  std::ifstream stream(file);
  for (std::string word; stream >> word;)
    if (word.size() > 2 && word.front() == '[' && word.back() == ']')
      return word.substr(1, word.size() - 2);
  return {};
}

/// For people: why shared memory has no huge pages.
std::string NoTransparentPages(const std::string& root) {
  const std::string file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
  const std::string choice = ReadChoice(root + file);
  if (choice.empty()) return "this kernel has no huge pages for shared memory";
  return "the kernel makes no huge pages of shared memory (/" + file + " is \"" + choice +
         "\": \"advise\" allows them)";
}

/// Tells MADV_COLLAPSE that is not known, or not allowed, from one that found no page.
int CollapsePages(std::byte* data, std::size_t bytes) {
  return madvise(data, bytes, MADV_COLLAPSE) == 0 ? 0 : errno;
}

bool TryTransparentPages() {
  const Result<UniqueFd> fd = CreateMemfd("tidegate-probe", kHugePageBytes);
  if (!fd.ok()) return false;
  const Result<SliceMapping> mapping =
      SliceMapping::Map(fd.value().get(), 0, kHugePageBytes, Access::kReadWrite);
  if (!mapping.ok()) return false;
  std::byte* const data = mapping.value().data();
  madvise(data, kHugePageBytes, MADV_HUGEPAGE);
  if (PopulatePages(data, SmallPageBytes()) != 0) return false;
  struct stat file{};
  // 512 bytes each, whatever the file system says.
  if (fstat(fd.value().get(), &file) == 0 && file.st_blocks * 512L == kHugePageBytes) return true;
  const int error = CollapsePages(data, kHugePageBytes);
  return error == 0 || error == ENOMEM || error == EBUSY || error == EAGAIN;
}

}  // namespace

std::string_view PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kHugePool:
      return "2 MiB pages of the pool";
    case PageKind::kTransparent:
      return "transparent huge pages";
    case PageKind::kSmall:
      return "small pages";
  }
  return "unknown";
}

Result<ChosenPages> ChoosePages(PageChoice choice, std::size_t expected_bytes,
                                const std::string& root, bool (*transparent_work)()) {
  if (choice == PageChoice::kSmall)
    return ChosenPages{.kind = PageKind::kSmall, .reason = "small pages were asked for"};
  std::string reason;
  if (choice != PageChoice::kNoHugePool) {
    const std::size_t free = FreeHugePoolBytes(root);
    if (free >= expected_bytes && free > 0)
      return ChosenPages{.kind = PageKind::kHugePool, .reason = {}};
    reason = "the machine's pool of 2 MiB pages has " + FormatBytes(free) + " free of the " +
             FormatBytes(expected_bytes) + " expected";
    if (choice == PageChoice::kHugePool)
      return Status(StatusCode::kResourceExhausted,
                    reason + ": " + FormatBytes(expected_bytes - std::min(free, expected_bytes)) +
                        " short; raise vm.nr_hugepages, or do not demand its pages");
  } else {
    reason = "the pool of 2 MiB pages was not to be used";
  }
  if (transparent_work()) return ChosenPages{.kind = PageKind::kTransparent, .reason = reason};
  return ChosenPages{.kind = PageKind::kSmall, .reason = reason + "; " + NoTransparentPages(root)};
}

bool TransparentPagesWork() {
  static const bool work = TryTransparentPages();
  return work;
}

bool BringHugePages(std::byte* data, std::size_t bytes) {
  // One small page of each unit says where it lies (and is a whole one where the advice is
  // enough); the rest comes when they are collapsed.
  for (std::size_t unit = 0; unit < bytes; unit += kHugePageBytes)
    if (PopulatePages(data + unit, SmallPageBytes()) != 0) return false;
  return CollapsePages(data, bytes) == 0;
}

int PopulatePages(std::byte* data, std::size_t bytes) {
  int error = 0;
  do {
    error = madvise(data, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error;
}

std::size_t FreeHugePoolBytes(const std::string& root) {
  const std::size_t free = ReadCount(root + kPool + "free_hugepages");
  const std::size_t reserved = ReadCount(root + kPool + "resv_hugepages");
  return (free - std::min(reserved, free)) * kHugePageBytes;
}

std::size_t SmallPageBytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace tidegate::offload
