#include "collectives/transport/shm/wire.h"

#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "common/check.h"

namespace tidegate {
namespace {

static_assert(std::has_unique_object_representations_v<NodeRequest>, "padding would leak memory");
static_assert(std::has_unique_object_representations_v<NodeReply>);

template <typename T>
Result<T> Parse(std::span<const std::byte> bytes) {
  T message;
  constexpr std::size_t kPrefix = sizeof(message.magic) + sizeof(message.version);
  if (bytes.size() >= kPrefix) std::memcpy(static_cast<void*>(&message), bytes.data(), kPrefix);
  if (bytes.size() < kPrefix || message.magic != kWireMagic)
    return Status(StatusCode::kInvalidArgument,
                  "a message of " + std::to_string(bytes.size()) + " bytes that is not tidegate's");
  if (message.version != kWireVersion)
    return Status(StatusCode::kMismatch, "it speaks version " + std::to_string(message.version) +
                                             " of the protocol between processes, this build " +
                                             std::to_string(kWireVersion) +
                                             "; use one tidegate on all ranks");
  if (bytes.size() != sizeof(message))
    return Status(StatusCode::kInvalidArgument, "a message of " + std::to_string(bytes.size()) +
                                                    " bytes where " +
                                                    std::to_string(sizeof(message)) + " belong");
  std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof(message));
  return message;
}

bool IsTerminated(const char (&text)[kAddressBytes]) {
  return strnlen(text, kAddressBytes) < kAddressBytes;
}

void CopyAddress(char (&destination)[kAddressBytes], const std::string& address) {
  TIDEGATE_CHECK(address.size() < kAddressBytes);
  std::memcpy(destination, address.data(), address.size());
}

}  // namespace

Result<SegmentKey> RandomKey() {
  SegmentKey key;
  // Up to 256 bytes arrive whole; only a wait for the first entropy after boot can be interrupted.
  while (getrandom(key.words.data(), sizeof(key.words), 0) < 0)
    if (errno != EINTR) return ErrnoStatus(errno, "getrandom");
  return key;
}

std::string ToHex(const SegmentKey& key) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(key.words[0]),
                static_cast<unsigned long long>(key.words[1]));
  return text;
}

bool FromHex(const std::string& text, SegmentKey* key) {
  if (text.size() != 32) return false;
  for (std::size_t i = 0; i < 2; ++i) {
    const char* begin = text.data() + 16 * i;
    const auto [end, error] = std::from_chars(begin, begin + 16, key->words[i], 16);
    if (error != std::errc() || end != begin + 16) return false;
  }
  return true;
}

NodeRequest MakeNodeRequest(RequestKind kind, const std::string& sender,
                            const std::string& receiver, const SegmentKey& key) {
  NodeRequest request;
  request.kind = kind;
  request.key = key;
  CopyAddress(request.sender, sender);
  CopyAddress(request.receiver, receiver);
  return request;
}

Result<NodeRequest> ParseNodeRequest(std::span<const std::byte> bytes) {
  Result<NodeRequest> request = Parse<NodeRequest>(bytes);
  if (!request.ok()) return request;
  const NodeRequest& message = request.value();
  if (message.kind != RequestKind::kLink && message.kind != RequestKind::kSegment)
    return Status(
        StatusCode::kInvalidArgument,
        "a request of unknown kind " + std::to_string(static_cast<std::uint32_t>(message.kind)));
  if (!IsTerminated(message.sender) || !IsTerminated(message.receiver))
    return Status(StatusCode::kInvalidArgument, "a request with an address that has no end");
  return request;
}

Result<NodeReply> ParseNodeReply(std::span<const std::byte> bytes) {
  Result<NodeReply> reply = Parse<NodeReply>(bytes);
  if (reply.ok() && reply.value().outcome != Outcome::kDone &&
      reply.value().outcome != Outcome::kRefused)
    return Status(StatusCode::kInvalidArgument,
                  "a reply with unknown outcome " +
                      std::to_string(static_cast<std::uint32_t>(reply.value().outcome)));
  return reply;
}

}  // namespace tidegate
