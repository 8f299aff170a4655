#include "common/ipc/unix_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/common/child_process.h"

namespace tidegate {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint Soon() { return SteadyClock().Now() + seconds(20); }
TimePoint Past() { return SteadyClock().Now() - seconds(1); }

std::string UniqueName(std::string_view part) {
  return "tidegate-test-" + std::to_string(getpid()) + "-" + std::string(part);
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::size_t OpenDescriptors() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(fds), end(fds)));
}

bool SameFile(int a, int b) {
  struct stat x{};
  struct stat y{};
  return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/// Two connected ends, made through the functions under test.
struct Connection {
  UniqueFd client;
  UniqueFd server;
};

Connection Connect(std::string_view part) {
  const std::string name = UniqueName(part);
  const UniqueFd listener = std::move(ListenAbstract(name).value());
  Connection connection;
  connection.client = std::move(ConnectAbstract(name, Soon()).value());
  connection.server = std::move(AcceptConnection(listener.get()).value());
  return connection;
}

TEST(UnixSocketTest, MessagesArriveWholeAndInOrder) {
  const Connection ends = Connect("whole");
  ASSERT_TRUE(SendMessage(ends.client.get(), AsBytes("first"), {}, Soon()).ok());
  ASSERT_TRUE(SendMessage(ends.client.get(), AsBytes("2nd"), {}, Soon()).ok());
  std::array<std::byte, 64> buffer;
  Result<Message> message = ReceiveMessage(ends.server.get(), buffer, Soon());
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message.value().size, 5u);
  EXPECT_TRUE(std::ranges::equal(AsBytes("first"), std::span(buffer).first(5)));
  EXPECT_EQ(ReceiveMessage(ends.server.get(), buffer, Soon()).value().size, 3u);
}

TEST(UnixSocketTest, DescriptorsArriveOpenAndCloseOnExec) {
  const Connection ends = Connect("descriptors");
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<int> sent(16, ends.client.get());
  sent[7] = null.get();
  ASSERT_TRUE(SendMessage(ends.client.get(), AsBytes("x"), sent, Soon()).ok());
  std::array<std::byte, 8> buffer;
  const Result<Message> message = ReceiveMessage(ends.server.get(), buffer, Soon());
  ASSERT_TRUE(message.ok()) << message.status().message();
  ASSERT_EQ(message.value().fds.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const int fd = message.value().fds[i].get();
    EXPECT_NE(fd, sent[i]);
    EXPECT_TRUE(SameFile(fd, sent[i])) << i;
    EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
}

TEST(UnixSocketTest, RefusesEmptyMessageAndTooManyDescriptors) {
  const Connection ends = Connect("limits");
  EXPECT_EQ(SendMessage(ends.client.get(), {}, {}, Soon()).code(), StatusCode::kInvalidArgument);
  const std::vector<int> fds(17, ends.client.get());
  EXPECT_EQ(SendMessage(ends.client.get(), AsBytes("x"), fds, Soon()).code(),
            StatusCode::kInvalidArgument);
}

TEST(UnixSocketTest, ReceivedMessageLongerThanTheBufferIsAnErrorWithoutLeak) {
  const Connection ends = Connect("long");
  const int fds[] = {ends.client.get()};
  ASSERT_TRUE(SendMessage(ends.client.get(), AsBytes("123456789"), fds, Soon()).ok());
  const std::size_t before = OpenDescriptors();
  std::array<std::byte, 8> buffer;
  const Result<Message> message = ReceiveMessage(ends.server.get(), buffer, Soon());
  ASSERT_FALSE(message.ok());
  EXPECT_EQ(message.status().code(), StatusCode::kInternal);
  EXPECT_THAT(message.status().message(), HasSubstr("9 bytes"));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(UnixSocketTest, MoreDescriptorsThanAgreedAreAnErrorWithoutLeak) {
  const Connection ends = Connect("excess");
  // As a stranger might send it: past the limit of SendMessage.
  constexpr std::size_t kCount = 20;
  char byte = 'x';
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kCount * sizeof(int))] = {};
  msghdr garbage{};
  garbage.msg_iov = &part;
  garbage.msg_iovlen = 1;
  garbage.msg_control = control;
  garbage.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&garbage);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(kCount * sizeof(int));
  std::fill_n(reinterpret_cast<int*>(CMSG_DATA(header)), kCount, ends.client.get());
  ASSERT_EQ(sendmsg(ends.client.get(), &garbage, 0), 1);

  const std::size_t before = OpenDescriptors();
  std::array<std::byte, 8> buffer;
  const Result<Message> message = ReceiveMessage(ends.server.get(), buffer, Soon());
  ASSERT_FALSE(message.ok());
  EXPECT_EQ(message.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(UnixSocketTest, LackOfDescriptorsIsResourceExhausted) {
  const Connection ends = Connect("nofile");
  const int fds[] = {ends.client.get(), ends.client.get()};
  ASSERT_TRUE(SendMessage(ends.client.get(), AsBytes("x"), fds, Soon()).ok());
  ChildProcess child([&] {
    const UniqueFd highest(dup(ends.server.get()));
    // Leaves room for one descriptor.
    const auto limit = static_cast<rlim_t>(highest.get()) + 2;
    const rlimit limits{.rlim_cur = limit, .rlim_max = limit};
    if (setrlimit(RLIMIT_NOFILE, &limits) != 0) return 1;
    std::array<std::byte, 8> buffer;
    const Result<Message> message = ReceiveMessage(ends.server.get(), buffer, Soon());
    if (message.ok()) return 2;
    if (message.status().code() != StatusCode::kResourceExhausted) return 3;
    return message.status().message().find("ulimit -n") == std::string::npos ? 4 : 0;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(UnixSocketTest, MessageBeyondTheSocketBufferIsInvalid) {
  const Connection ends = Connect("huge");
  const std::vector<std::byte> huge(std::size_t{64} << 20);
  const Status status = SendMessage(ends.client.get(), huge, {}, Soon());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(huge.size())));
}

TEST(UnixSocketTest, ClosedPeerEndsReceivingAfterWhatItSent) {
  Connection ends = Connect("closed");
  ASSERT_TRUE(SendMessage(ends.client.get(), AsBytes("last"), {}, Soon()).ok());
  ends.client.Reset();
  std::array<std::byte, 8> buffer;
  EXPECT_EQ(ReceiveMessage(ends.server.get(), buffer, Soon()).value().size, 4u);
  EXPECT_EQ(ReceiveMessage(ends.server.get(), buffer, Soon()).value().size, 0u);
}

TEST(UnixSocketTest, PeerThatClosedWithoutReadingEndsReceiving) {
  Connection ends = Connect("unread");
  ASSERT_TRUE(SendMessage(ends.server.get(), AsBytes("never read"), {}, Soon()).ok());
  ends.client.Reset();
  std::array<std::byte, 8> buffer;
  const Result<Message> message = ReceiveMessage(ends.server.get(), buffer, Soon());
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message.value().size, 0u);
}

TEST(UnixSocketTest, SendingToClosedPeerIsPeerLostAndNoSignal) {
  Connection ends = Connect("pipe");
  ends.server.Reset();
  ChildProcess child([&] {
    std::signal(SIGPIPE, SIG_DFL);
    const Status status = SendMessage(ends.client.get(), AsBytes("x"), {}, Soon());
    return status.code() == StatusCode::kPeerLost ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(UnixSocketTest, ReceiveTimesOut) {
  const Connection ends = Connect("silent");
  std::array<std::byte, 8> buffer;
  EXPECT_EQ(ReceiveMessage(ends.server.get(), buffer, Past()).status().code(),
            StatusCode::kTimeout);
  const TimePoint deadline = SteadyClock().Now() + milliseconds(20);
  EXPECT_EQ(ReceiveMessage(ends.server.get(), buffer, deadline).status().code(),
            StatusCode::kTimeout);
  EXPECT_GE(SteadyClock().Now(), deadline);
}

TEST(UnixSocketTest, PastDeadlineStillReceivesWhatIsThere) {
  const Connection ends = Connect("poll");
  ASSERT_TRUE(SendMessage(ends.client.get(), AsBytes("x"), {}, Past()).ok());
  std::array<std::byte, 8> buffer;
  EXPECT_TRUE(ReceiveMessage(ends.server.get(), buffer, Past()).ok());
}

TEST(UnixSocketTest, SendTimesOutWhenThePeerDoesNotRead) {
  const Connection ends = Connect("full");
  Status status;
  for (int sent = 0; sent < 100000 && status.ok(); ++sent) {
    status = SendMessage(ends.client.get(), AsBytes("x"), {}, Past());
  }
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  // Room appears as soon as one message is read.
  std::array<std::byte, 8> buffer;
  ASSERT_TRUE(ReceiveMessage(ends.server.get(), buffer, Soon()).ok());
  EXPECT_TRUE(SendMessage(ends.client.get(), AsBytes("x"), {}, Soon()).ok());
}

TEST(UnixSocketTest, ReceiverWakesWhenAnotherProcessSends) {
  const Connection ends = Connect("process");
  ChildProcess child([&] {
    const int fds[] = {ends.client.get()};
    return SendMessage(ends.client.get(), AsBytes("hello"), fds, Soon()).ok() ? 0 : 1;
  });
  std::array<std::byte, 8> buffer;
  const Result<Message> message = ReceiveMessage(ends.server.get(), buffer, Soon());
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message.value().size, 5u);
  EXPECT_EQ(message.value().fds.size(), 1u);
  EXPECT_EQ(child.Wait(), 0);
}

TEST(UnixSocketTest, CredentialsAreThoseOfTheConnectingProcess) {
  const std::string name = UniqueName("credentials");
  const Result<UniqueFd> listener = ListenAbstract(name);
  ASSERT_TRUE(listener.ok());
  ChildProcess child([&] {
    const Result<UniqueFd> connection = ConnectAbstract(name, Soon());
    if (!connection.ok()) return 1;
    std::array<std::byte, 8> buffer;
    return ReceiveMessage(connection.value().get(), buffer, Soon()).ok() ? 0 : 2;
  });
  pollfd pending{.fd = listener.value().get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&pending, 1, 20000), 1);
  const Result<UniqueFd> connection = AcceptConnection(listener.value().get());
  ASSERT_TRUE(connection.ok());
  const Result<PeerCredentials> peer = GetPeerCredentials(connection.value().get());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer.value().pid, child.pid());
  EXPECT_EQ(peer.value().uid, geteuid());
  ASSERT_TRUE(SendMessage(connection.value().get(), AsBytes("bye"), {}, Soon()).ok());
  EXPECT_EQ(child.Wait(), 0);
}

TEST(UnixSocketTest, AcceptWithoutPendingConnectionIsEmpty) {
  const Result<UniqueFd> listener = ListenAbstract(UniqueName("idle"));
  ASSERT_TRUE(listener.ok());
  const Result<UniqueFd> connection = AcceptConnection(listener.value().get());
  ASSERT_TRUE(connection.ok());
  EXPECT_FALSE(connection.value().valid());
}

TEST(UnixSocketTest, ConnectingToNobodyIsPeerLostAtOnce) {
  EXPECT_EQ(ConnectAbstract(UniqueName("nobody"), kNoDeadline).status().code(),
            StatusCode::kPeerLost);
}

TEST(UnixSocketTest, ConnectTimesOutOnFullBacklog) {
  const std::string name = UniqueName("backlog");
  const Result<UniqueFd> listener = ListenAbstract(name);
  ASSERT_TRUE(listener.ok());
  ASSERT_EQ(listen(listener.value().get(), 1), 0);  // Shrinks the backlog.
  std::vector<UniqueFd> pending;
  Status status;
  for (int i = 0; i < 8 && status.ok(); ++i) {
    Result<UniqueFd> connection = ConnectAbstract(name, SteadyClock().Now() + milliseconds(20));
    status = connection.status();
    if (connection.ok()) pending.push_back(std::move(connection).value());
  }
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_FALSE(pending.empty());
}

TEST(UnixSocketTest, ConnectWaitsForRoomInTheBacklog) {
  const std::string name = UniqueName("room");
  const Result<UniqueFd> listener = ListenAbstract(name);
  ASSERT_TRUE(listener.ok());
  ASSERT_EQ(listen(listener.value().get(), 0), 0);
  constexpr int kConnections = 4;
  ChildProcess child([&] {
    for (int i = 0; i < kConnections; ++i) {
      if (!ConnectAbstract(name, Soon()).ok()) return 1;
    }
    return 0;
  });
  for (int accepted = 0; accepted < kConnections; ++accepted) {
    pollfd pending{.fd = listener.value().get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&pending, 1, 20000), 1);
    ASSERT_TRUE(AcceptConnection(listener.value().get()).value().valid());
  }
  EXPECT_EQ(child.Wait(), 0);
}

TEST(UnixSocketTest, SocketsAreNonBlockingAndCloseOnExec) {
  const Connection ends = Connect("flags");
  for (const int fd : {ends.client.get(), ends.server.get()}) {
    EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(UnixSocketTest, NameIsFreeAgainWhenTheListenerGoes) {
  const std::string name = UniqueName("reuse");
  {
    const Result<UniqueFd> listener = ListenAbstract(name);
    ASSERT_TRUE(listener.ok());
    EXPECT_EQ(ListenAbstract(name).status().code(), StatusCode::kInternal);
  }
  EXPECT_TRUE(ListenAbstract(name).ok());
}

TEST(UnixSocketTest, RefusesNamesThatDoNotFit) {
  EXPECT_EQ(ListenAbstract("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(ListenAbstract(UniqueName(std::string(60, 'x'))).ok());
  EXPECT_EQ(ListenAbstract(std::string(108, 'x')).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectAbstract(std::string(108, 'x'), Soon()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PidfdTest, BecomesReadableWhenTheProcessIsKilled) {
  ChildProcess child([] {
    for (;;) pause();
    return 0;
  });
  const Result<UniqueFd> pidfd = OpenPidfd(child.pid());
  if (pidfd.status().code() == StatusCode::kUnsupported) GTEST_SKIP() << pidfd.status().message();
  ASSERT_TRUE(pidfd.ok()) << pidfd.status().message();
  pollfd ended{.fd = pidfd.value().get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 0), 0);
  child.Kill();
  EXPECT_EQ(poll(&ended, 1, 20000), 1);
  EXPECT_NE(fcntl(pidfd.value().get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(PidfdTest, EndedProcessIsPeerLost) {
  ChildProcess child([] { return 0; });
  ASSERT_EQ(child.Wait(), 0);
  const StatusCode code = OpenPidfd(child.pid()).status().code();
  if (code == StatusCode::kUnsupported) GTEST_SKIP() << "no pidfd_open here";
  EXPECT_EQ(code, StatusCode::kPeerLost);
}

}  // namespace
}  // namespace tidegate
