#include "offload/threads/thread_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/drivers/sysfs/sysfs_file.h"
#include "common/machine/machine.h"

namespace tidegate::offload {
namespace {

using std::filesystem::path;

/// A core, as far as it may be used.
struct Core {
  std::vector<int> cpus;
  int numa = 0;
};

std::vector<Core> UsableCores(const ThreadFacts& facts) {
  std::vector<Core> cores;
  std::vector<int> rest = facts.usable;
  for (const CoreFact& fact : facts.cores) {
    Core core{.cpus = {}, .numa = fact.numa};
    for (const int cpu : fact.cpus)
      if (std::erase(rest, cpu) != 0) core.cpus.push_back(cpu);
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  for (const int cpu : rest) cores.push_back({.cpus = {cpu}});
  std::ranges::stable_sort(cores, {}, &Core::numa);
  return cores;
}

std::vector<Core> EachThreadACore(const std::vector<Core>& cores) {
  std::vector<Core> threads;
  for (const Core& core : cores)
    for (const int cpu : core.cpus) threads.push_back({.cpus = {cpu}, .numa = core.numa});
  return threads;
}

/// Part `index` of `parts` of `total` things: where it begins.
std::size_t PartBegin(std::size_t total, int index, int parts) {
  return total * static_cast<std::size_t>(index) / static_cast<std::size_t>(parts);
}

/// The part of `cores` that is this rank's alone, unless there are more ranks than processors.
std::vector<Core> PartOf(std::vector<Core> cores, int sharer, int sharers) {
  if (cores.size() < static_cast<std::size_t>(sharers)) cores = EachThreadACore(cores);
  if (cores.size() < static_cast<std::size_t>(sharers))
    return {cores[static_cast<std::size_t>(sharer) % cores.size()]};
  const auto begin = static_cast<std::ptrdiff_t>(PartBegin(cores.size(), sharer, sharers));
  const auto end = static_cast<std::ptrdiff_t>(PartBegin(cores.size(), sharer + 1, sharers));
  return {cores.begin() + begin, cores.begin() + end};
}

/// The most threads that quota and OMP_NUM_THREADS allow the rank.
std::size_t Limit(const ThreadFacts& facts, std::size_t cores) {
  std::size_t limit = cores;
  if (facts.quota) {
    const auto total = static_cast<std::size_t>(std::ceil(std::max(*facts.quota, 0.0)));
    const std::size_t part = PartBegin(total, facts.local_rank + 1, facts.local_ranks) -
                             PartBegin(total, facts.local_rank, facts.local_ranks);
    limit = std::min(limit, part);
  }
  const bool by_torchrun = facts.omp_threads == 1U && facts.local_ranks > 1;
  if (facts.omp_threads && !by_torchrun) limit = std::min(limit, *facts.omp_threads);
  return std::max<std::size_t>(limit, 1);
}

std::string ReadAll(const path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// What follows `name` in a file of lines "name:\tvalue"; empty without it.
std::string Field(const path& file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    const std::size_t value = line.find_first_not_of(" \t", name.size() + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::optional<int> NumberOf(const Environment& environment, std::string_view name) {
  const std::optional<std::string> text = environment(name);
  return text ? ParseNumber<int>(*text) : std::nullopt;
}

/// What /proc says about processes. A process may be gone, or not be ours to look at: then it has
/// nothing of what is asked.
class Processes {
 public:
  explicit Processes(const std::string& root) : proc_(path(root) / "proc") {}

  /// The affinity mask.
  std::vector<int> MaskOf(const std::string& process) const {
    return ParseCpuList(Field(proc_ / process / "status", "Cpus_allowed_list"));
  }
  std::string ParentOf(const std::string& process) const {
    return Field(proc_ / process / "status", "PPid");
  }
  std::vector<std::string> ChildrenOf(const std::string& process) const {
    std::vector<std::string> children;
    for (const std::string& thread : ListFolder(proc_ / process / "task")) {
      std::ifstream stream(proc_ / process / "task" / thread / "children");
      for (std::string child; stream >> child;) children.push_back(child);
    }
    return children;
  }
  /// The LOCAL_RANK that it was started with.
  std::optional<int> RankOf(const std::string& process) const {
    constexpr std::string_view kName = "LOCAL_RANK=";
    const std::string environment = ReadAll(proc_ / process / "environ");
    for (std::size_t begin = 0; begin < environment.size();) {
      const std::size_t end = std::min(environment.find('\0', begin), environment.size());
      const auto variable = std::string_view(environment).substr(begin, end - begin);
      if (variable.starts_with(kName)) return ParseNumber<int>(variable.substr(kName.size()));
      begin = end + 1;
    }
    return std::nullopt;
  }

 private:
  const path proc_;
};

/// Deepest chain of wrappers (shell scripts, numactl) between a launcher and its ranks.
constexpr int kMostWrappers = 4;

/// The mask that the rank of `process` was given, by it or by what it started.
std::vector<int> MaskOfRank(const Processes& processes, std::string process,
                            const std::vector<int>& launcher_mask) {
  std::vector<int> mask = processes.MaskOf(process);
  for (int depth = 0; depth < kMostWrappers && mask == launcher_mask; ++depth) {
    const std::vector<std::string> children = processes.ChildrenOf(process);
    if (children.size() != 1) break;  // A wrapper has one.
    process = children.front();
    mask = processes.MaskOf(process);
  }
  return mask;
}

void FindSharers(const Processes& processes, ThreadFacts& facts) {
  facts.sharers = facts.local_ranks;
  facts.sharer = facts.local_rank;
  if (facts.local_ranks == 1) return;
  // A wrapper is started with the rank's environment, the launcher is not.
  std::string launcher = processes.ParentOf("self");
  for (int depth = 0; depth < kMostWrappers && processes.RankOf(launcher); ++depth)
    launcher = processes.ParentOf(launcher);
  const std::vector<int> launcher_mask = processes.MaskOf(launcher);
  if (launcher_mask.empty() || launcher_mask == facts.usable) return;
  facts.sharers = 1;
  facts.sharer = 0;
  for (const std::string& child : processes.ChildrenOf(launcher)) {
    const std::optional<int> rank = processes.RankOf(child);
    if (!rank || *rank == facts.local_rank ||
        MaskOfRank(processes, child, launcher_mask) != facts.usable)
      continue;
    ++facts.sharers;
    if (*rank < facts.local_rank) ++facts.sharer;
  }
}

std::vector<int> MaskOfThisThread(const Processes& processes) {
  std::vector<int> mask = processes.MaskOf("thread-self");
  if (!mask.empty()) return mask;
  const CpuSet set = AffinityMask();
  for (std::size_t cpu = 0; cpu < set.size() * 64; ++cpu)
    if ((set[cpu / 64] >> cpu % 64 & 1) != 0) mask.push_back(static_cast<int>(cpu));
  return mask;
}

}  // namespace

std::vector<ThreadPlace> PlanThreads(const ThreadFacts& facts) {
  TIDEGATE_CHECK(facts.sharers > 0 && facts.sharer >= 0 && facts.sharer < facts.sharers);
  TIDEGATE_CHECK(facts.local_rank >= 0 && facts.local_rank < facts.local_ranks);
  const std::vector<Core> usable = UsableCores(facts);
  if (usable.empty()) return std::vector<ThreadPlace>(facts.threads.value_or(1));
  const std::vector<Core> cores = PartOf(usable, facts.sharer, facts.sharers);
  const std::size_t count = facts.threads.value_or(Limit(facts, cores.size()));

  std::vector<ThreadPlace> processors;
  for (std::size_t thread = 0; processors.size() < EachThreadACore(cores).size(); ++thread)
    for (const Core& core : cores)
      if (thread < core.cpus.size())
        processors.push_back({.cpus = {core.cpus[thread]}, .numa = core.numa});
  std::vector<ThreadPlace> places;
  places.reserve(count);
  for (std::size_t thread = 0; thread < count; ++thread)
    places.push_back(processors[thread % processors.size()]);
  if (count >= cores.size()) return places;
  for (ThreadPlace& place : places) {
    place.cpus.clear();
    for (const Core& core : cores)
      if (core.numa == place.numa)
        place.cpus.insert(place.cpus.end(), core.cpus.begin(), core.cpus.end());
    std::ranges::sort(place.cpus);
  }
  return places;
}

ThreadFacts ReadThreadFacts(std::optional<std::size_t> setting, const Environment& environment,
                            const std::string& root) {
  const Processes processes(root);
  ThreadFacts facts;
  facts.usable = MaskOfThisThread(processes);
  Result<CpuFacts> machine = ReadSysfsCpus(root);
  if (machine.ok()) facts.cores = std::move(machine.value().cores);
  facts.quota = CpuQuota(root);
  facts.threads = setting;
  // A list has one number for each level of nested parallelism.
  const std::optional<int> omp = NumberOf(environment, "OMP_NUM_THREADS");
  if (omp && *omp > 0) facts.omp_threads = static_cast<std::size_t>(*omp);
  const int rank = NumberOf(environment, "LOCAL_RANK").value_or(0);
  const int ranks = NumberOf(environment, "LOCAL_WORLD_SIZE").value_or(1);
  if (rank >= 0 && rank < ranks) {
    facts.local_rank = rank;
    facts.local_ranks = ranks;
  }
  FindSharers(processes, facts);
  return facts;
}

}  // namespace tidegate::offload
