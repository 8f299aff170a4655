#include "backend/fetch_list.h"

#include <cstdint>

namespace tidegate {
namespace {

constexpr std::size_t kLine = 64;

}  // namespace

void FetchList::Add(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  Add(impl, sizeof(*impl));
  // Where a parameter has its gradient.
  if (const auto* const autograd = impl->autograd_meta()) Add(autograd, 2 * kLine);
  if (impl->has_storage()) Add(impl->unsafe_storage().unsafeGetStorageImpl(), kLine);
}

void FetchList::Fetch() {
  // Processors drop prefetches that they have no room for: the second time gets most of those.
  for (int time = 0; time < 2; ++time) FetchOnce();
  ranges_.clear();
}

void FetchList::FetchOnce() const {
  for (const Range& range : ranges_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(range.from);
    for (std::uintptr_t line = begin / kLine * kLine; line < begin + range.bytes; line += kLine)
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the line that an address is in
      __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}

}  // namespace tidegate
