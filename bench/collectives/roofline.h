#pragma once

#include <cstddef>

namespace tidegate::bench {

/// What a rank must at least do with memory that is all its own, without asking anybody: the bound
/// that a collective is held against. All ranks do it at once.
enum class Stores {
  kPlain,      ///< Into the cache: memcpy, and a vectorised sum.
  kStreaming,  ///< Past the cache (non-temporal), which saves reading what is overwritten.
};

/// dst[i] = src[i].
void CopyOnce(Stores stores, std::byte* dst, const std::byte* src, std::size_t bytes);

/// dst[i] = the sum of float i of each of `blocks` blocks of `bytes` that lie one after the other
/// at `src`, in one pass. REQUIRES: `dst` aligned to 64 bytes; `bytes` a multiple of 4.
void SumOnce(Stores stores, std::byte* dst, const std::byte* src, int blocks, std::size_t bytes);

}  // namespace tidegate::bench
