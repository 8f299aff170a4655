#include "common/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/unique_fd.h"

namespace tidegate {
namespace {

std::mutex g_mutex;
std::vector<std::pair<LogLevel, std::string>> g_lines;  // Guarded by g_mutex.

void Collect(LogLevel level, std::string_view message) {
  const std::lock_guard lock(g_mutex);
  g_lines.emplace_back(level, message);
}

/// Standard error replaced by a datagram socket, which keeps apart what single writes wrote.
class CapturedStandardError {
 public:
  CapturedStandardError() : saved_(dup(STDERR_FILENO)) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) throw std::runtime_error("socketpair");
    reader_ = UniqueFd(ends[0]);
    const UniqueFd writer(ends[1]);
    dup2(writer.get(), STDERR_FILENO);
  }
  ~CapturedStandardError() { dup2(saved_.get(), STDERR_FILENO); }

  /// What the next write wrote; empty when there was none.
  std::string NextWrite() {
    char buffer[512];
    const ssize_t size = recv(reader_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(buffer, static_cast<std::size_t>(size));
  }

 private:
  UniqueFd saved_;
  UniqueFd reader_;
};

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override { g_lines.clear(); }
  void TearDown() override {
    SetLogSink(nullptr);
    SetLogLevel(LogLevel::kWarn);
    SetLogRank(-1);
  }
};

TEST_F(LogTest, SinkReceivesEnabledLevelsOnly) {
  SetLogSink(&Collect);
  SetLogLevel(LogLevel::kInfo);
  Log(LogLevel::kWarn, "a");
  Log(LogLevel::kInfo, "b");
  Log(LogLevel::kTrace, "c");
  const std::vector<std::pair<LogLevel, std::string>> expected = {{LogLevel::kWarn, "a"},
                                                                  {LogLevel::kInfo, "b"}};
  EXPECT_EQ(g_lines, expected);
}

TEST_F(LogTest, WarningsAreEnabledByDefault) {
  EXPECT_TRUE(LogEnabled(LogLevel::kWarn));
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
}

TEST_F(LogTest, OffSilencesEverything) {
  SetLogSink(&Collect);
  SetLogLevel(LogLevel::kOff);
  Log(LogLevel::kWarn, "a");
  Log(LogLevel::kOff, "b");
  EXPECT_TRUE(g_lines.empty());
}

TEST_F(LogTest, DefaultSinkWritesEachLineAtOnce) {
  CapturedStandardError captured;
  Log(LogLevel::kWarn, "no rank yet");
  SetLogRank(3);
  Log(LogLevel::kWarn, "peer is slow");
  EXPECT_EQ(captured.NextWrite(), "tidegate WARN: no rank yet\n");
  EXPECT_EQ(captured.NextWrite(), "[rank3] tidegate WARN: peer is slow\n");
  EXPECT_EQ(captured.NextWrite(), "");
}

TEST_F(LogTest, ThrowingSinkFallsBackToStandardError) {
  CapturedStandardError captured;
  SetLogSink([](LogLevel, std::string_view) { throw std::runtime_error("sink is broken"); });
  EXPECT_NO_THROW(Log(LogLevel::kWarn, "kept"));
  EXPECT_EQ(captured.NextWrite(), "tidegate WARN: kept\n");
}

TEST_F(LogTest, KeepsErrno) {
  SetLogSink([](LogLevel, std::string_view) { errno = EIO; });
  errno = ENOENT;
  Log(LogLevel::kWarn, "a");
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(LogTest, SinkMayBeReplacedWhileOthersLog) {
  constexpr int kLines = 500;
  SetLogSink(&Collect);
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([] {
      for (int line = 0; line < kLines; ++line) Log(LogLevel::kWarn, "line");
    });
  }
  for (int i = 0; i < kLines; ++i) {
    SetLogSink([](LogLevel level, std::string_view message) { Collect(level, message); });
    SetLogSink(&Collect);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(g_lines.size(), 3u * kLines);
}

}  // namespace
}  // namespace tidegate
