#include "common/log.h"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

namespace tidegate {
namespace {

// Independent settings: nothing is published through them, so relaxed order is enough.
constinit std::atomic<LogSink> g_sink{nullptr};
constinit std::atomic<LogLevel> g_level{LogLevel::kWarn};
constinit std::atomic<int> g_rank{-1};

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kOff:
      return "OFF";
    case LogLevel::kWarn:
      return "WARN";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kTrace:
      return "TRACE";
  }
  return "?";
}

/// One system call a line, so that lines of several ranks on one terminal or pipe do not mix; no
/// allocation, so that logging works when memory is short.
void WriteToStandardError(LogLevel level, std::string_view message) noexcept {
  char prefix[48];
  const int rank = g_rank.load(std::memory_order_relaxed);
  const int length =
      rank < 0
          ? std::snprintf(prefix, sizeof(prefix), "tidegate %s: ", LevelName(level))
          : std::snprintf(prefix, sizeof(prefix), "[rank%d] tidegate %s: ", rank, LevelName(level));
  if (length < 0) return;
  char newline = '\n';
  iovec parts[] = {
      {prefix, static_cast<std::size_t>(length)},
      {const_cast<char*>(message.data()), message.size()},
      {&newline, 1},
  };
  // A line that standard error does not take (closed, full and non-blocking) is dropped: there is
  // nowhere left to report it.
  while (writev(STDERR_FILENO, parts, 3) < 0 && errno == EINTR) {
  }
}

}  // namespace

void SetLogSink(LogSink sink) { g_sink.store(sink, std::memory_order_relaxed); }

void SetLogRank(int rank) { g_rank.store(rank, std::memory_order_relaxed); }

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) {
  return level != LogLevel::kOff && level <= g_level.load(std::memory_order_relaxed);
}

void Log(LogLevel level, std::string_view message) {
  if (!LogEnabled(level)) return;
  const int saved_errno = errno;  // Callers log between a failed call and reading its errno.
  if (const LogSink sink = g_sink.load(std::memory_order_relaxed); sink != nullptr) {
    try {
      sink(level, message);
    } catch (...) {
      WriteToStandardError(level, message);
    }
  } else {
    WriteToStandardError(level, message);
  }
  errno = saved_errno;
}

}  // namespace tidegate
