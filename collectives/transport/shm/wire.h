#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

// Messages between the node services of two processes: one request and one reply a connection.
// Magic and version lead every message of every version.

inline constexpr std::uint64_t kWireMagic = 0x7464677477697265;  // "tdgtwire"
inline constexpr std::uint32_t kWireVersion = 2;

/// Names what a process offers to those who were told of it; random, so that it cannot be guessed
/// or mistaken for that of another job.
struct SegmentKey {
  std::array<std::uint64_t, 2> words{};
  bool operator==(const SegmentKey&) const = default;
};

/// From the kernel's random source.
Result<SegmentKey> RandomKey();
/// 32 hexadecimal digits.
std::string ToHex(const SegmentKey& key);
/// False when `text` is not what ToHex returns.
bool FromHex(const std::string& text, SegmentKey* key);

enum class RequestKind : std::uint32_t {
  kLink = 1,     ///< Carries the sender's doorbell; answered with the receiver's.
  kSegment = 2,  ///< Answered with the segment that is offered under `key`.
};

inline constexpr std::size_t kAddressBytes = 64;

struct NodeRequest {
  std::uint64_t magic = kWireMagic;
  std::uint32_t version = kWireVersion;
  RequestKind kind = RequestKind::kLink;
  SegmentKey key;
  char sender[kAddressBytes] = {};    ///< Address of the sender's service, zero-terminated.
  char receiver[kAddressBytes] = {};  ///< Whom the sender means to talk to.
};

enum class Outcome : std::uint32_t {
  kDone = 1,
  /// Nothing is offered under that key (any more), or the versions differ, which the reply shows.
  kRefused = 2,
};

struct NodeReply {
  std::uint64_t magic = kWireMagic;
  std::uint32_t version = kWireVersion;
  Outcome outcome = Outcome::kDone;
};

NodeRequest MakeNodeRequest(RequestKind kind, const std::string& sender,
                            const std::string& receiver, const SegmentKey& key);

/// What arrived, checked: size, magic, version, kind, termination of strings. kMismatch for another
/// version, kInvalidArgument for anything else.
Result<NodeRequest> ParseNodeRequest(std::span<const std::byte> bytes);
Result<NodeReply> ParseNodeReply(std::span<const std::byte> bytes);

template <typename T>
std::span<const std::byte> BytesOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace tidegate
