#include "common/drivers/sysfs/cpu_facts.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "common/drivers/sysfs/sysfs_file.h"

namespace tidegate {
namespace {

using std::filesystem::path;

std::vector<int> ReadList(const path& file) {
  return ParseCpuList(ReadSysfsLine(file).value_or(""));
}

/// The processors below the same last-level cache as `cpu`: those of its highest level.
std::vector<int> CacheOf(const path& cpu) {
  std::int64_t highest = 0;
  std::vector<int> shared;
  for (const std::string& name : ListFolder(cpu / "cache")) {
    const path cache = cpu / "cache" / name;
    const std::int64_t level = ReadSysfsNumber(cache / "level").value_or(0);
    if (level <= highest || ReadSysfsLine(cache / "type") == "Instruction") continue;
    highest = level;
    shared = ReadList(cache / "shared_cpu_list");
  }
  return shared;
}

std::uint64_t MemoryOf(const path& numa) {
  // "Node 0 MemTotal:       65536 kB", the first line.
  const std::string line = ReadSysfsLine(numa / "meminfo").value_or("");
  const std::size_t digits = line.find_first_of("0123456789", line.find(':'));
  if (line.find("MemTotal:") == std::string::npos || digits == std::string::npos) return 0;
  std::uint64_t kib = 0;
  for (std::size_t i = digits; i < line.size() && line[i] >= '0' && line[i] <= '9'; ++i)
    kib = kib * 10 + static_cast<std::uint64_t>(line[i] - '0');
  return kib * 1024;
}

}  // namespace

Result<CpuFacts> ReadSysfsCpus(const std::string& root) {
  const path system = path(root) / "sys/devices/system";
  const std::vector<int> online = ReadList(system / "cpu/online");
  if (online.empty())
    return Status(StatusCode::kInternal, "cannot read the processors of this machine from " +
                                             (system / "cpu/online").string() +
                                             "; describe it with TIDEGATE_TOPO_FILE");
  CpuFacts facts;
  std::map<int, int> numa_of_cpu;
  for (const int numa : ReadList(system / "node/online")) {
    const path folder = system / "node" / ("node" + std::to_string(numa));
    NumaFact fact{.numa = numa, .memory_bytes = MemoryOf(folder)};
    std::string distances = ReadSysfsLine(folder / "distance").value_or("");
    for (std::size_t at = 0; at < distances.size();) {
      const std::size_t end = std::min(distances.find(' ', at), distances.size());
      const std::vector<int> value = ParseCpuList(std::string_view(distances).substr(at, end - at));
      if (!value.empty()) fact.distance.push_back(value.front());
      at = end + 1;
    }
    facts.numa.push_back(std::move(fact));
    for (const int cpu : ReadList(folder / "cpulist")) numa_of_cpu[cpu] = numa;
  }
  if (facts.numa.empty()) facts.numa.push_back({.numa = 0, .distance = {10}});

  std::map<std::vector<int>, int> caches;
  for (const int cpu : online) {
    const path folder = system / "cpu" / ("cpu" + std::to_string(cpu));
    CoreFact core{.cpu = cpu, .cpus = ReadList(folder / "topology/thread_siblings_list")};
    std::erase_if(core.cpus, [&](int sibling) {
      return !std::binary_search(online.begin(), online.end(), sibling);
    });
    if (core.cpus.empty()) core.cpus = {cpu};
    if (core.cpus.front() != cpu) continue;
    core.package =
        static_cast<int>(ReadSysfsNumber(folder / "topology/physical_package_id").value_or(0));
    const auto numa = numa_of_cpu.find(cpu);
    core.numa = numa == numa_of_cpu.end() ? facts.numa.front().numa : numa->second;
    std::vector<int> shared = CacheOf(folder);
    if (shared.empty()) shared = {-1 - std::max(0, core.package)};
    core.cache =
        caches.try_emplace(std::move(shared), static_cast<int>(caches.size())).first->second;
    facts.cores.push_back(std::move(core));
  }
  return facts;
}

}  // namespace tidegate
