#include "bench/collectives/local_store.h"

#include <sched.h>

#include <cstring>
#include <thread>
#include <utility>

#include "common/clock.h"

namespace tidegate::bench {
namespace {

/// Between two looks at a key that is not there yet. Only groups being made wait here.
constexpr Nanoseconds kPoll = std::chrono::microseconds(100);

class Locked {
 public:
  explicit Locked(std::atomic<std::uint32_t>& lock) : lock_(lock) {
    while (lock_.exchange(1, std::memory_order_acquire) != 0) sched_yield();
  }
  ~Locked() { lock_.store(0, std::memory_order_release); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  std::atomic<std::uint32_t>& lock_;
};

}  // namespace

LocalStore::LocalStore(StoreTable& table, std::string group)
    : table_(table), prefix_(std::move(group) + "/") {}

Status LocalStore::Set(const std::string& key, const std::string& value) {
  const Locked locked(table_.lock);
  return Append(prefix_ + key, value);
}

Result<std::string> LocalStore::Get(const std::string& key, Nanoseconds timeout) {
  const std::string full = prefix_ + key;
  const TimePoint deadline = DeadlineAfter(SteadyClock().Now(), timeout);
  for (;;) {
    {
      const Locked locked(table_.lock);
      if (const StoreTable::Entry* const entry = Find(full)) return std::string(ValueOf(*entry));
    }
    if (SteadyClock().Now() >= deadline)
      return Status(StatusCode::kTimeout, "no rank has set " + full + " within the time allowed");
    std::this_thread::sleep_for(kPoll);
  }
}

Result<std::int64_t> LocalStore::Increment(const std::string& key) {
  const std::string full = prefix_ + key;
  const Locked locked(table_.lock);
  const StoreTable::Entry* const entry = Find(full);
  const std::int64_t next = entry == nullptr ? 1 : std::stoll(std::string(ValueOf(*entry))) + 1;
  TIDEGATE_RETURN_IF_ERROR(Append(full, std::to_string(next)));
  return next;
}

const StoreTable::Entry* LocalStore::Find(std::string_view key) const {
  for (std::uint32_t i = table_.entries; i-- > 0;) {
    const StoreTable::Entry& entry = table_.entry[i];
    if (std::string_view(table_.text + entry.offset, entry.key_bytes) == key) return &entry;
  }
  return nullptr;
}

Status LocalStore::Append(std::string_view key, std::string_view value) {
  if (table_.entries == StoreTable::kEntries ||
      StoreTable::kTextBytes - table_.used < key.size() + value.size())
    return {StatusCode::kResourceExhausted,
            "the bench's store is full at " + std::to_string(table_.entries) + " entries of " +
                std::to_string(table_.used) + " bytes: measure fewer rank counts at once"};
  char* const text = table_.text + table_.used;
  std::memcpy(text, key.data(), key.size());
  std::memcpy(text + key.size(), value.data(), value.size());
  table_.entry[table_.entries++] = {static_cast<std::uint32_t>(key.size()),
                                    static_cast<std::uint32_t>(value.size()), table_.used};
  table_.used += static_cast<std::uint32_t>(key.size() + value.size());
  return {};
}

std::string_view LocalStore::ValueOf(const StoreTable::Entry& entry) const {
  return {table_.text + entry.offset + entry.key_bytes, entry.value_bytes};
}

}  // namespace tidegate::bench
