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
  kTransparent,  ///< 2 MiB where the kernel finds such, else small: shared memory by madvise.
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

/// The kind for a segment of which `expected_bytes` will have pages. kResourceExhausted, saying by
/// how much the pool is short, for a kHugePool that cannot be. `root` replaces "/" in tests.
Result<ChosenPages> ChoosePages(PageChoice choice, std::size_t expected_bytes,
                                const std::string& root = "/");

/// Bytes of 2 MiB pages in the machine's pool that nobody has or has reserved.
std::size_t FreeHugePoolBytes(const std::string& root = "/");

/// Bytes of an ordinary page of this machine.
std::size_t SmallPageBytes();

}  // namespace tidegate::offload
