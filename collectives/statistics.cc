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

}  // namespace

void GroupStatistics::Count(std::string_view operation, std::uint64_t calls, std::uint64_t bytes,
                            Nanoseconds duration, bool failed, const SharedMemory& read) {
  const std::lock_guard lock(mutex_);
  auto found = operations_.find(operation);
  if (found == operations_.end())
    found = operations_.emplace(std::string(operation), Operation()).first;
  Operation& counters = found->second;
  counters.calls += calls;
  counters.nanoseconds += static_cast<std::uint64_t>(duration.count());
  if (failed) {
    ++counters.errors;
  } else {
    counters.bytes += bytes;
  }
  read_.bytes += read.bytes;
  read_.resident += read.resident;
  read_.single_copy += read.single_copy;
}

void GroupStatistics::set_admission(std::shared_ptr<const GroupAdmission> admission) {
  const std::lock_guard lock(mutex_);
  admission_ = std::move(admission);
}

void GroupStatistics::CountRead(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  read_.bytes += bytes;
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
  std::uint64_t shared_memory_bytes = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t single_copy_bytes = 0;
  std::string groups;
  for (const auto& [name, group] : groups_) {
    const std::lock_guard group_lock(group->mutex_);
    shared_memory_bytes += group->read_.bytes;
    resident_bytes += group->read_.resident;
    single_copy_bytes += group->read_.single_copy;
    std::string ranks;
    for (const std::int64_t rank : group->ranks_)
      ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
    std::string operations;
    for (const auto& [operation, counters] : group->operations_)
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
         "},\"links\":{\"shm\":{\"bytes\":" + std::to_string(shared_memory_bytes) +
         ",\"resident_bytes\":" + std::to_string(resident_bytes) +
         ",\"single_copy_bytes\":" + std::to_string(single_copy_bytes) +
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
