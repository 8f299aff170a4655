#pragma once

#include <cstdint>
#include <optional>

namespace tidegate {

/// Operations, and bytes of their outputs, that may be in flight; nothing set: any number.
struct Budget {
  std::optional<std::uint64_t> ops;
  std::optional<std::uint64_t> bytes;
};

/// What becomes of an asynchronous all-gather for which the budget has no room.
enum class Overflow : std::uint8_t {
  kQueue,  ///< The call returns, and the operation starts later.
  kBlock,  ///< The calling thread waits.
};

/// How two ranks are connected.
enum class LinkClass : std::uint8_t { kNode, kNet };

/// The links on which bytes count for a rate.
enum class CountedLinks : std::uint8_t { kAll, kNode, kNet };

constexpr bool Counts(CountedLinks counted, LinkClass link) {
  return counted == CountedLinks::kAll ||
         (counted == CountedLinks::kNode) == (link == LinkClass::kNode);
}

/// What all-gathers may do together; nothing set: anything.
struct AdmissionLimits {
  Budget in_flight;
  Overflow overflow = Overflow::kQueue;
  /// Bytes a second that may be read from peers.
  std::optional<std::uint64_t> rate;
  /// Bytes that may be read at once after a pause; else RateLimit::DefaultBurst.
  std::optional<std::uint64_t> burst;
  CountedLinks links = CountedLinks::kAll;
};

}  // namespace tidegate
