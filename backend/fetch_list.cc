#include "backend/fetch_list.h"

#include <cstdint>

namespace tidegate {
namespace {

constexpr std::size_t kLine = 64;
constexpr int kTimes = 4;

}  // namespace

void FetchList::Add(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  Add(impl, sizeof(*impl));
  // Where a parameter has its gradient.
  if (const auto* const autograd = impl->autograd_meta()) Add(autograd, 2 * kLine);
  if (impl->has_storage()) Add(impl->unsafe_storage().unsafeGetStorageImpl(), kLine);
}

void FetchList::Fetch() {
  // Processors drop prefetches that they have no room for, the more of them the colder the tables
  // of pages are. Of 2,000 tensors, after other work between the steps: what follows takes 3.1 ms
  // after one time (0.4 ms), 2.6 after two (0.6), 1.5 after four (0.8) and 1.3 after eight (1.2).
  for (int time = 0; time < kTimes; ++time) FetchOnce();
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
