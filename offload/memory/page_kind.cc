#include "offload/memory/page_kind.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/units.h"

namespace tidegate::offload {
namespace {

constexpr const char* kPool = "sys/kernel/mm/hugepages/hugepages-2048kB/";
constexpr const char* kTransparent = "sys/kernel/mm/transparent_hugepage/";

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

/// Why shared memory has no transparent huge pages even where they are advised; empty: it has.
std::string NoTransparentPages(const std::string& root) {
  const std::string file = root + kTransparent + "shmem_enabled";
  const std::string choice = ReadChoice(file);
  if (choice.empty()) return "this kernel has no huge pages for shared memory";
  // From Linux 6.10 on each size has a switch of its own, which may leave it to the first.
  const std::string sized = ReadChoice(root + kTransparent + "hugepages-2048kB/shmem_enabled");
  const bool switched_off = choice == "deny" || sized == "never" ||
                            (choice == "never" && (sized.empty() || sized == "inherit"));
  if (!switched_off) return {};
  return "/" + file.substr(root.size()) + " is \"" + choice + "\" (advise allows huge pages)";
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
                                const std::string& root) {
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
  const std::string none = NoTransparentPages(root);
  if (none.empty()) return ChosenPages{.kind = PageKind::kTransparent, .reason = reason};
  return ChosenPages{.kind = PageKind::kSmall, .reason = reason + "; " + none};
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
