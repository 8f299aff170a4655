#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {

// Sequenced-packet unix sockets in the abstract namespace: no file is left behind, whatever way the
// owner dies, and each message arrives whole with its descriptors. All sockets are close-on-exec.

/// Listens on abstract name `name` (without the leading NUL). Non-blocking.
Result<UniqueFd> ListenAbstract(std::string_view name);

/// Accepts one pending connection, non-blocking; an invalid UniqueFd when none is pending.
Result<UniqueFd> AcceptConnection(int listener);

/// Connects to `name`; the returned socket is non-blocking. kPeerLost at once when nobody listens;
/// a full backlog is retried until `deadline`.
Result<UniqueFd> ConnectAbstract(std::string_view name, TimePoint deadline);

/// Who is at the other end, as the kernel saw it when the connection was made.
struct PeerCredentials {
  pid_t pid;
  uid_t uid;
};
Result<PeerCredentials> GetPeerCredentials(int socket);

/// Sends one message of `bytes` (at least 1) with up to 16 descriptors; waits for room until
/// `deadline`. kPeerLost when the peer has closed, kInvalidArgument when the message is too long.
Status SendMessage(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                   TimePoint deadline);

struct Message {
  std::size_t size = 0;  ///< Bytes written to the caller's buffer; 0 when the peer closed.
  std::vector<UniqueFd> fds;
};
/// Receives one message into `buffer`, waiting until `deadline` (kTimeout after it; a deadline in
/// the past polls). A message longer than `buffer` or with truncated descriptors is an error.
Result<Message> ReceiveMessage(int socket, std::span<std::byte> buffer, TimePoint deadline);

/// A descriptor that becomes readable when process `pid` ends. kPeerLost when it is already gone,
/// kUnsupported without pidfd_open (before Linux 5.3, and in some sandboxes).
Result<UniqueFd> OpenPidfd(pid_t pid);

}  // namespace tidegate
