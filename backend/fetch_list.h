#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tidegate {

/// Memory to be brought into the cache. Of thousands of small tensors nothing is there after a step
/// that went through hundreds of megabytes, and to look at them one after the other is to wait for
/// memory several times for each, since each address is read from the one before. All at once these
/// take a fraction of that. Only hints: what is gone by then is neither read nor missed. Grows
/// until Fetch. One thread at a time.
class FetchList {
 public:
  void Add(const void* from, std::size_t bytes) { ranges_.push_back({from, bytes}); }
  /// What is known of a tensor, but not its elements.
  void Add(const at::Tensor& tensor);

  /// Begins to fetch everything, and forgets it.
  void Fetch();

 private:
  struct Range {
    const void* from;
    std::size_t bytes;
  };
  void FetchOnce() const;

  std::vector<Range> ranges_;
};

}  // namespace tidegate
