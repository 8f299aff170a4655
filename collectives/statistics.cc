#include "collectives/statistics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "collectives/communicator.h"
#include "common/unique_fd.h"

namespace tidegate {
namespace {

/// Group names come from the user.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Seconds(std::uint64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9f", static_cast<double>(nanoseconds) * 1e-9);
  return text;
}

std::uint64_t Value(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

/// REQUIRES: no other thread does at the same time.
void Raise(std::atomic<std::uint64_t>& counter, std::uint64_t by) {
  counter.store(Value(counter) + by, std::memory_order_relaxed);
}

}  // namespace

void CollectiveCounters::Count(Collective collective, const Finished& finished) {
  Counters& counters = of_collective_[static_cast<std::size_t>(collective)];
  Raise(counters.calls, finished.calls);
  Raise(counters.ticks, finished.duration);
  if (finished.failed) {
    Raise(counters.errors, 1);
  } else {
    Raise(counters.bytes, finished.bytes);
  }
  Raise(read_, finished.read.bytes);
  Raise(resident_, finished.read.resident);
  Raise(single_copy_, finished.read.single_copy);
}

std::shared_ptr<CollectiveCounters> GroupStatistics::TakeCounters() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<CollectiveCounters>& counters : collectives_) {
    if (counters.use_count() > 1) continue;
    // After whoever held them last.
    std::atomic_thread_fence(std::memory_order_acquire);
    return counters;
  }
  return collectives_.emplace_back(std::make_shared<CollectiveCounters>());
}

void GroupStatistics::CountTransfer(std::string_view operation, std::uint64_t bytes,
                                    Nanoseconds duration, bool failed) {
  const std::lock_guard lock(mutex_);
  auto found = transfers_.find(operation);
  if (found == transfers_.end())
    found = transfers_.emplace(std::string(operation), Operation()).first;
  Operation& counters = found->second;
  ++counters.calls;
  counters.nanoseconds += static_cast<std::uint64_t>(duration.count());
  if (failed) {
    ++counters.errors;
  } else {
    counters.bytes += bytes;
  }
}

void GroupStatistics::set_admission(std::shared_ptr<const GroupAdmission> admission) {
  const std::lock_guard lock(mutex_);
  admission_ = std::move(admission);
}

void GroupStatistics::CountRead(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  transfer_bytes_read_ += bytes;
}

GroupStatistics::Operations GroupStatistics::Total(SharedMemoryBytes* read) const {
  Operations total = transfers_;
  read->bytes += transfer_bytes_read_;
  for (const std::shared_ptr<CollectiveCounters>& counters : collectives_) {
    for (int i = 0; i < kCollectives; ++i) {
      const CollectiveCounters::Counters& one =
          counters->of_collective_[static_cast<std::size_t>(i)];
      if (Value(one.calls) == 0) continue;
      Operation& operation = total[std::string(NameOf(static_cast<Collective>(i)))];
      operation.calls += Value(one.calls);
      operation.bytes += Value(one.bytes);
      operation.nanoseconds += static_cast<std::uint64_t>(DurationOf(Value(one.ticks)).count());
      operation.errors += Value(one.errors);
    }
    read->bytes += Value(counters->read_);
    read->resident += Value(counters->resident_);
    read->single_copy += Value(counters->single_copy_);
  }
  return total;
}

StatisticsRegistry& StatisticsRegistry::Process() {
  static auto& registry = *new StatisticsRegistry;  // Leaked: used until the very end.
  return registry;
}

std::shared_ptr<GroupStatistics> StatisticsRegistry::Group(
    const std::string& name, const std::vector<std::int64_t>& global_ranks) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<GroupStatistics>& group = groups_[name];
  if (group == nullptr) group = std::make_shared<GroupStatistics>();
  const std::lock_guard group_lock(group->mutex_);
  group->ranks_ = global_ranks;
  return group;
}

void StatisticsRegistry::SetRank(int rank) {
  const std::lock_guard lock(mutex_);
  if (rank_ < 0) rank_ = rank;
}

std::string StatisticsRegistry::ToJson() {
  const std::lock_guard lock(mutex_);
  SharedMemoryBytes read;
  std::string groups;
  for (const auto& [name, group] : groups_) {
    const std::lock_guard group_lock(group->mutex_);
    std::string ranks;
    for (const std::int64_t rank : group->ranks_)
      ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
    std::string operations;
    for (const auto& [operation, counters] : group->Total(&read))
      operations += (operations.empty() ? "" : ",") + Quoted(operation) +
                    ":{\"calls\":" + std::to_string(counters.calls) +
                    ",\"bytes\":" + std::to_string(counters.bytes) +
                    ",\"seconds\":" + Seconds(counters.nanoseconds) +
                    ",\"errors\":" + std::to_string(counters.errors) + "}";
    const Admission* const own = group->admission_ == nullptr ? nullptr : group->admission_->own();
    groups += (groups.empty() ? "" : ",") + Quoted(name) + ":{\"ranks\":[" + ranks + "],\"ops\":{" +
              operations + "}" + (own == nullptr ? "" : ",\"admission\":" + own->ToJson()) + "}";
  }
  return "{\"version\":1,\"rank\":" + std::to_string(rank_) + ",\"groups\":{" + groups +
         "},\"links\":{\"shm\":{\"bytes\":" + std::to_string(read.bytes) +
         ",\"resident_bytes\":" + std::to_string(read.resident) +
         ",\"single_copy_bytes\":" + std::to_string(read.single_copy) +
         "}},\"admission\":" + Admission::Process().ToJson() + "}";
}

Status StatisticsRegistry::AppendTo(const std::string& path) {
  const std::string line = ToJson() + "\n";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, "TIDEGATE_STATS_FILE: cannot open " + path);
  const ssize_t written = write(file.get(), line.data(), line.size());
  if (written < 0) return ErrnoStatus(errno, "TIDEGATE_STATS_FILE: cannot write " + path);
  if (static_cast<std::size_t>(written) != line.size())
    return Status(StatusCode::kResourceExhausted,
                  "TIDEGATE_STATS_FILE: " + path + " took only a part of the line");
  return Status();
}

std::string StatsJson() { return StatisticsRegistry::Process().ToJson(); }

}  // namespace tidegate
