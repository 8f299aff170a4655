#pragma once

#include <string_view>

namespace tidegate {

enum class LogLevel { kOff, kWarn, kInfo, kTrace };

/// Receives finished messages, one line each without a newline. Called from any thread.
using LogSink = void (*)(LogLevel level, std::string_view message);

/// Replaces the sink; null restores the default, which writes
/// "[rankR] tidegate WARN: message" to standard error in one write. Thread-safe.
void SetLogSink(LogSink sink);
/// The rank shown by the default sink; -1 (shown as nothing) until the first group is made.
void SetLogRank(int rank);
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

/// Hands `message` to the sink when `level` is enabled. Formatting belongs behind LogEnabled().
void Log(LogLevel level, std::string_view message);

}  // namespace tidegate
