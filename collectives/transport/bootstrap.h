#pragma once

#include <cstdint>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// A key-value store that all ranks of one group reach before they share memory; keys are private
/// to the group. backend/store_bootstrap implements it over c10d::Store. Thread-safe; calls may
/// block on the network, never longer than their deadline.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual Status Set(const std::string& key, const std::string& value) = 0;
  /// Waits for `key`; kTimeout after `timeout`.
  virtual Result<std::string> Get(const std::string& key, Nanoseconds timeout) = 0;
  /// Adds 1 to counter `key` atomically and returns the new value; the first caller gets 1.
  virtual Result<std::int64_t> Increment(const std::string& key) = 0;
};

}  // namespace tidegate
