#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tidegate::offload {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// What the pages of a segment are, best first.
enum class PageKind {
  kHugePool,     ///< 2 MiB each, of the machine's pool (vm.nr_hugepages); never swapped.
  kTransparent,  ///< 2 MiB where the kernel finds such, else small: by madvise.
  kSmall,        ///< As the processor has them, mostly 4 KiB.
};
std::string_view PageKindName(PageKind kind);

/// What a caller asks for.
enum class PageChoice {
  kAutomatic,   ///< The best kind that serves all of the bytes expected.
  kHugePool,    ///< An error where the pool is too small.
  kNoHugePool,  ///< kTransparent where the kernel allows that, else kSmall.
  kSmall,
};

struct ChosenPages {
  PageKind kind = PageKind::kSmall;
  std::string reason;  ///< Why not a better kind; empty for the best.
};

/// Whether the kernel makes huge pages of this process's shared memory when told to: tries it with
/// one, once a process. Two ways lead there: by default MADV_HUGEPAGE is enough on few machines
/// (shmem_enabled "advise"), while MADV_COLLAPSE of Linux 6.1 works under any setting but "deny".
bool TransparentPagesWork();

/// The kind for a segment of which `expected_bytes` will have pages. kResourceExhausted, saying by
/// how much the pool is short, for a kHugePool that cannot be. `root` replaces "/" in tests, and
/// `transparent_work` what this kernel can do.
Result<ChosenPages> ChoosePages(PageChoice choice, std::size_t expected_bytes,
                                const std::string& root = "/",
                                bool (*transparent_work)() = &TransparentPagesWork);

/// Bytes of 2 MiB pages in the machine's pool that nobody has or has reserved.
std::size_t FreeHugePoolBytes(const std::string& root = "/");

/// Brings the pages of [data, data + bytes), whole 2 MiB units of a shared mapping that are advised
/// as huge (MADV_HUGEPAGE), as huge ones where the kernel has such: true if all of them are. Others
/// may have few or no pages, and are for the caller to populate. Lands on the node that the policy
/// of each unit's first page says.
bool BringHugePages(std::byte* data, std::size_t bytes);

/// Brings the pages of [data, data + bytes) (MADV_POPULATE_WRITE): the errno, 0 if all went well.
int PopulatePages(std::byte* data, std::size_t bytes);

/// Bytes of an ordinary page of this machine.
std::size_t SmallPageBytes();

}  // namespace tidegate::offload
