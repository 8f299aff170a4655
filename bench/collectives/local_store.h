#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/transport/bootstrap.h"

namespace tidegate::bench {

/// A key-value table for forked ranks, in memory that they share. Zero-filled memory is valid.
struct StoreTable {
  struct Entry {
    std::uint32_t key_bytes;
    std::uint32_t value_bytes;
    std::uint32_t offset;  ///< Of the key in `text`; the value follows.
  };
  static constexpr std::size_t kEntries = 4096;
  static constexpr std::size_t kTextBytes = std::size_t{16} << 20;

  std::atomic<std::uint32_t> lock;
  std::uint32_t entries;
  std::uint32_t used;
  Entry entry[kEntries];
  char text[kTextBytes];
};

/// One group's view of a table: its keys begin with the group's name.
class LocalStore : public Bootstrap {
 public:
  /// `table` must outlive the store.
  LocalStore(StoreTable& table, std::string group);

  Status Set(const std::string& key, const std::string& value) override;
  Result<std::string> Get(const std::string& key, Nanoseconds timeout) override;
  Result<std::int64_t> Increment(const std::string& key) override;

 private:
  /// The last entry of `key`, or null. REQUIRES: the lock.
  const StoreTable::Entry* Find(std::string_view key) const;
  /// Keys are never removed: a new value is a new entry. REQUIRES: the lock.
  Status Append(std::string_view key, std::string_view value);
  std::string_view ValueOf(const StoreTable::Entry& entry) const;

  StoreTable& table_;
  const std::string prefix_;
};

}  // namespace tidegate::bench
