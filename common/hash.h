#pragma once

#include <cstdint>
#include <string_view>

namespace tidegate {

/// FNV-1a of 64 bits (Fowler, Noll and Vo): tells apart what differs by chance, not by malice.
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325;

/// One step of it, over a byte or, which mixes less, a whole word.
constexpr std::uint64_t MixHash(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3;
}

constexpr std::uint64_t HashText(std::string_view text) {
  std::uint64_t hash = kHashSeed;
  for (const char letter : text) hash = MixHash(hash, static_cast<unsigned char>(letter));
  return hash;
}

}  // namespace tidegate
