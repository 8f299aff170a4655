#include "common/ipc/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace tidegate {
namespace {

constexpr std::size_t kMaxFds = 16;

struct AbstractAddress {
  sockaddr_un address;
  socklen_t length;
};

Result<AbstractAddress> MakeAddress(std::string_view name) {
  AbstractAddress result{};
  constexpr std::size_t kMaxName = sizeof(result.address.sun_path) - 1;
  if (name.empty() || name.size() > kMaxName) {
    return Status(StatusCode::kInvalidArgument,
                  "a unix socket name has 1 to " + std::to_string(kMaxName) + " bytes, \"" +
                      std::string(name) + "\" has " + std::to_string(name.size()));
  }
  result.address.sun_family = AF_UNIX;
  // The NUL in front makes the name abstract; the length, not a NUL at the end, delimits it.
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

const sockaddr* AsSockaddr(const AbstractAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.address);
}

Nanoseconds TimeLeft(TimePoint deadline) {
  return std::max(deadline - SteadyClock().Now(), Nanoseconds::zero());
}

/// Waits until `socket` has one of `events` (or an error, which the next call on it reports).
Status WaitFor(int socket, short events, TimePoint deadline, std::string_view what) {
  for (;;) {
    const Nanoseconds left = TimeLeft(deadline);
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec timeout{.tv_sec = static_cast<time_t>(seconds.count()),
                           .tv_nsec = static_cast<long>((left - seconds).count())};
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int ready = ppoll(&entry, 1, deadline == kNoDeadline ? nullptr : &timeout, nullptr);
    if (ready > 0) return Status();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll of a unix socket");
    if (ready == 0) {
      return Status(StatusCode::kTimeout, "timed out " + std::string(what) + " a unix socket");
    }
  }
}

Status StatusAs(StatusCode code, int error_number, std::string_view what) {
  return Status(code, ErrnoStatus(error_number, what).message());
}

}  // namespace

Result<UniqueFd> ListenAbstract(std::string_view name) {
  const Result<AbstractAddress> address = MakeAddress(name);
  if (!address.ok()) return address.status();
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return ErrnoStatus(errno, "making a unix socket");
  if (bind(listener.get(), AsSockaddr(address.value()), address.value().length) != 0) {
    return ErrnoStatus(errno, "binding unix socket @" + std::string(name));
  }
  if (listen(listener.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, "listening on unix socket @" + std::string(name));
  }
  return listener;
}

Result<UniqueFd> AcceptConnection(int listener) {
  for (;;) {
    UniqueFd connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) return connection;
    if (errno == EAGAIN) return UniqueFd();
    if (errno != EINTR && errno != ECONNABORTED) {
      return ErrnoStatus(errno, "accepting on a unix socket");
    }
  }
}

Result<UniqueFd> ConnectAbstract(std::string_view name, TimePoint deadline) {
  const Result<AbstractAddress> address = MakeAddress(name);
  if (!address.ok()) return address.status();
  // Blocking at first: a unix socket that meets a full backlog cannot be polled for room, but the
  // kernel waits for it up to the send timeout.
  UniqueFd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!connection.valid()) return ErrnoStatus(errno, "making a unix socket");
  const std::string what = "connecting to unix socket @" + std::string(name);
  for (;;) {
    if (deadline != kNoDeadline) {
      const auto left = std::chrono::duration_cast<std::chrono::microseconds>(TimeLeft(deadline));
      // Zero would mean no limit.
      const auto micros = std::max<std::chrono::microseconds::rep>(left.count(), 1);
      const timeval timeout{.tv_sec = static_cast<time_t>(micros / 1000000),
                            .tv_usec = static_cast<suseconds_t>(micros % 1000000)};
      if (setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0) {
        return ErrnoStatus(errno, what);
      }
    }
    if (connect(connection.get(), AsSockaddr(address.value()), address.value().length) == 0) break;
    if (errno == ECONNREFUSED) return StatusAs(StatusCode::kPeerLost, errno, what);
    if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, what);
    if (TimeLeft(deadline) == Nanoseconds::zero()) {
      return Status(StatusCode::kTimeout, "timed out " + what + ": its backlog stayed full");
    }
  }
  const int flags = fcntl(connection.get(), F_GETFL);
  if (flags < 0 || fcntl(connection.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "making a unix socket non-blocking");
  }
  return connection;
}

Result<PeerCredentials> GetPeerCredentials(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "reading the credentials of a unix socket's peer");
  }
  return PeerCredentials{.pid = credentials.pid, .uid = credentials.uid};
}

Status SendMessage(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                   TimePoint deadline) {
  // A message without bytes could not be told from the end of the connection.
  if (bytes.empty() || fds.size() > kMaxFds) {
    return Status(StatusCode::kInvalidArgument, "a message has at least 1 byte and at most " +
                                                    std::to_string(kMaxFds) + " descriptors, not " +
                                                    std::to_string(bytes.size()) + " and " +
                                                    std::to_string(fds.size()));
  }
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Status();
    switch (errno) {
      case EINTR:
        break;
      case EAGAIN:
        TIDEGATE_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline, "sending to"));
        break;
      case EPIPE:
      case ECONNRESET:
        return StatusAs(StatusCode::kPeerLost, errno, "sending to a unix socket");
      case EMSGSIZE:
        return Status(StatusCode::kInvalidArgument, "a message of " + std::to_string(bytes.size()) +
                                                        " bytes is too long for a unix socket");
      default:
        return ErrnoStatus(errno, "sending to a unix socket");
    }
  }
}

namespace {

/// Takes ownership of every descriptor that came with `message`.
std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> fds;
  fds.reserve(kMaxFds);  // All that the control buffer holds: a throw later would leak them.
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Result<Message> ReceiveMessage(int socket, std::span<std::byte> buffer, TimePoint deadline) {
  iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxFds * sizeof(int))];
  for (;;) {
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    // MSG_TRUNC: the true length is returned, however short the buffer.
    const ssize_t size = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    if (size < 0) {
      if (errno == EINTR) continue;
      // The peer closed without reading all that was sent to it.
      if (errno == ECONNRESET) return Message();
      if (errno != EAGAIN) return ErrnoStatus(errno, "receiving from a unix socket");
      TIDEGATE_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline, "receiving from"));
      continue;
    }
    Message message{.size = static_cast<std::size_t>(size), .fds = TakeFds(header)};
    if ((header.msg_flags & MSG_TRUNC) != 0) {
      return Status(StatusCode::kInternal, "the peer of a unix socket sent a message of " +
                                               std::to_string(size) + " bytes where at most " +
                                               std::to_string(buffer.size()) + " were expected");
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      return Status(
          StatusCode::kResourceExhausted,
          "descriptors sent over a unix socket were lost: " + std::to_string(message.fds.size()) +
              " arrived; raise the descriptor limit (ulimit -n)");
    }
    return message;
  }
}

Result<UniqueFd> OpenPidfd(pid_t pid) {
  // Close-on-exec by definition of the call.
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd.valid()) return fd;
  const int error = errno;
  const std::string what = "watching process " + std::to_string(pid) + " (pidfd_open)";
  if (error == ESRCH) return StatusAs(StatusCode::kPeerLost, error, what);
  // EPERM is how sandboxes hide a system call that they do not know.
  if (error == ENOSYS || error == EPERM) return StatusAs(StatusCode::kUnsupported, error, what);
  return ErrnoStatus(error, what);
}

}  // namespace tidegate
