#include "common/machine/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

namespace tidegate {
namespace {

using std::filesystem::path;

std::optional<std::string> ReadLine(const path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

/// nullopt for a missing file and for a word such as "max".
std::optional<std::uint64_t> ReadNumber(const path& file) {
  std::istringstream stream(ReadLine(file).value_or(""));
  std::uint64_t value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

/// The number that follows `name` in a file of lines "name number".
std::optional<std::uint64_t> ReadField(const path& file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream fields(line);
    std::string field;
    std::uint64_t value = 0;
    if (fields >> field >> value && field == name) return value;
  }
  return std::nullopt;
}

/// Calls `visit` with each processor in the affinity mask of the calling thread.
template <typename Visit>
void VisitAffinity(const Visit& visit) {
  // The kernel refuses (EINVAL) a mask shorter than its own, whose length it does not tell.
  for (int bits = CPU_SETSIZE; bits <= (1 << 20); bits *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(static_cast<std::size_t>(bits)), [](cpu_set_t* set) { CPU_FREE(set); });
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(bits));
    if (mask == nullptr) return;
    if (sched_getaffinity(0, bytes, mask.get()) == 0) {
      for (std::size_t cpu = 0; cpu < bytes * 8; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, mask.get())) visit(cpu);
      return;
    }
    if (errno != EINVAL) return;
  }
}

std::optional<double> Ratio(const std::string& quota_text, const std::string& period_text) {
  double quota = 0;
  double period = 0;
  // "max" (v2) does not parse and -1 (v1) is negative: both mean no limit.
  if (!(std::istringstream(quota_text) >> quota) || !(std::istringstream(period_text) >> period) ||
      quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return quota / period;
}

/// The quota that the control group of directory `group` sets itself, under either version.
std::optional<double> QuotaOf(const path& group) {
  if (const std::optional<std::string> line = ReadLine(group / "cpu.max")) {
    const std::size_t space = line->find(' ');
    if (space == std::string::npos) return std::nullopt;
    return Ratio(line->substr(0, space), line->substr(space + 1));
  }
  return Ratio(ReadLine(group / "cpu.cfs_quota_us").value_or(""),
               ReadLine(group / "cpu.cfs_period_us").value_or(""));
}

/// What version 1 shows for "no limit" is a number, too: the greatest multiple of a page.
constexpr std::uint64_t kNoMemoryLimit = std::uint64_t{1} << 62;

/// The memory limit that the control group of directory `group` sets itself, in bytes.
std::optional<std::uint64_t> MemoryLimitOf(const path& group) {
  const bool version2 = std::filesystem::exists(group / "memory.max");
  const auto limit = ReadNumber(group / (version2 ? "memory.max" : "memory.limit_in_bytes"));
  if (limit && *limit >= kNoMemoryLimit) return std::nullopt;
  return limit;
}

/// Bytes that the control group of directory `group` may still take, counting its file cache as
/// free; nullopt without a limit.
std::optional<std::uint64_t> MemoryRoomOf(const path& group) {
  const bool version2 = std::filesystem::exists(group / "memory.max");
  const auto limit = ReadNumber(group / (version2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto usage = ReadNumber(group / (version2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !usage) return std::nullopt;
  const std::string_view prefix = version2 ? "" : "total_";
  const std::uint64_t cache =
      ReadField(group / "memory.stat", std::string(prefix) + "inactive_file").value_or(0) +
      ReadField(group / "memory.stat", std::string(prefix) + "active_file").value_or(0);
  const std::uint64_t taken = *usage - std::min(cache, *usage);
  return *limit - std::min(taken, *limit);
}

bool Contains(const std::string& controllers, std::string_view wanted) {
  std::istringstream stream(controllers);
  for (std::string controller; std::getline(stream, controller, ',');) {
    if (controller == wanted) return true;
  }
  return false;
}

/// The least value of `limit_of(directory)` over the control groups, of either version, that bind
/// this process under `controller`.
template <typename T>
std::optional<T> LeastLimit(const path& root, const std::string& controller,
                            std::optional<T> (*limit_of)(const path& group)) {
  std::optional<T> least;
  std::ifstream groups(root / "proc/self/cgroup");
  // Each line is "id:controllers:path"; version 2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !Contains(controllers, controller)) continue;

    const path mounts = root / "sys/fs/cgroup";
    const std::vector<path> hierarchies =
        controllers.empty() ? std::vector<path>{mounts, mounts / "unified"}
                            : std::vector<path>{mounts / controllers, mounts / controller};
    // A limit binds all groups below it, so the least one on the way up counts. Inside a container
    // the path may be the host's and only the top of the hierarchy exists here.
    const path group = path(line.substr(second + 1)).lexically_normal().relative_path();
    for (const path& hierarchy : hierarchies) {
      for (path level = group;; level = level.parent_path()) {
        if (const std::optional<T> limit = limit_of(hierarchy / level)) {
          least = std::min(least.value_or(*limit), *limit);
        }
        if (level.empty()) break;
      }
    }
  }
  return least;
}

}  // namespace

std::optional<double> CpuQuota(const std::string& root) {
  return LeastLimit<double>(root, "cpu", &QuotaOf);
}

std::uint64_t AvailableMemory(const std::string& root) {
  constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();
  const path meminfo = path(root) / "proc/meminfo";
  std::uint64_t available = kUnknown;
  if (const auto kib = ReadField(meminfo, "MemAvailable:")) {
    available = (*kib + ReadField(meminfo, "SwapFree:").value_or(0)) * 1024;
  }
  return std::min(available,
                  LeastLimit<std::uint64_t>(root, "memory", &MemoryRoomOf).value_or(kUnknown));
}

std::uint64_t TotalMemory(const std::string& root) {
  constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();
  const auto kib = ReadField(path(root) / "proc/meminfo", "MemTotal:");
  return std::min(kib ? *kib * 1024 : kUnknown, MemoryLimit(root).value_or(kUnknown));
}

std::optional<std::uint64_t> MemoryLimit(const std::string& root) {
  return LeastLimit<std::uint64_t>(root, "memory", &MemoryLimitOf);
}

CpuSet AffinityMask() {
  CpuSet set{};
  VisitAffinity(
      [&](std::size_t cpu) { set[cpu / 64 % set.size()] |= std::uint64_t{1} << cpu % 64; });
  return set;
}

int UsableCpus(const std::string& root) {
  int cpus = 0;
  VisitAffinity([&](std::size_t) { ++cpus; });
  cpus = std::max(cpus, 1);
  const std::optional<double> quota = CpuQuota(root);
  if (!quota || *quota >= cpus) return cpus;
  return std::max(1, static_cast<int>(std::ceil(*quota)));
}

int NumaNodes(const std::string& root) {
  // A list of ranges, such as "0-1,4".
  std::istringstream ranges(
      ReadLine(path(root) / "sys/devices/system/node/has_memory").value_or(""));
  int nodes = 0;
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0;
    std::istringstream stream(range);
    if (!(stream >> first)) continue;
    int last = first;
    if (stream.get() == '-') stream >> last;
    nodes += std::max(0, last - first + 1);
  }
  return std::max(1, nodes);
}

Result<std::string> BootId(const std::string& root) {
  const path file = path(root) / "proc/sys/kernel/random/boot_id";
  std::optional<std::string> id = ReadLine(file);
  if (!id || id->empty()) {
    return Status(StatusCode::kInternal, "cannot read the boot id from " + file.string());
  }
  return *std::move(id);
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string CpuModel(const std::string& root) {
  std::ifstream stream(path(root) / "proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(": ");
    // "model name" on x86, "CPU part" where ARM has no name to show.
    if (colon != std::string::npos &&
        (line.starts_with("model name") || line.starts_with("CPU part")))
      return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace tidegate
