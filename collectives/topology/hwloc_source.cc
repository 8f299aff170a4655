#include "collectives/topology/hwloc_source.h"

#if __has_include(<hwloc.h>)

#include <dlfcn.h>
#include <hwloc.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace tidegate {
namespace {

/// The functions that are used, looked up by name: nothing links the library, and inline functions
/// of its header, which would, are not called.
struct Library {
  decltype(&hwloc_topology_init) init;
  decltype(&hwloc_topology_set_flags) set_flags;
  decltype(&hwloc_topology_load) load;
  decltype(&hwloc_topology_destroy) destroy;
  decltype(&hwloc_get_type_depth) type_depth;
  decltype(&hwloc_get_nbobjs_by_depth) count;
  decltype(&hwloc_get_obj_by_depth) object;
  decltype(&hwloc_bitmap_next) next;
  decltype(&hwloc_bitmap_isset) is_set;
};

template <typename Function>
bool Find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

/// Null where it is missing. Stays loaded: it is looked at once or twice in a process.
const Library* Load() {
  static const std::unique_ptr<const Library> library = []() -> std::unique_ptr<const Library> {
    void* const handle = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    auto found = std::make_unique<Library>();
    if (handle == nullptr || !Find(handle, "hwloc_topology_init", found->init) ||
        !Find(handle, "hwloc_topology_set_flags", found->set_flags) ||
        !Find(handle, "hwloc_topology_load", found->load) ||
        !Find(handle, "hwloc_topology_destroy", found->destroy) ||
        !Find(handle, "hwloc_get_type_depth", found->type_depth) ||
        !Find(handle, "hwloc_get_nbobjs_by_depth", found->count) ||
        !Find(handle, "hwloc_get_obj_by_depth", found->object) ||
        !Find(handle, "hwloc_bitmap_next", found->next) ||
        !Find(handle, "hwloc_bitmap_isset", found->is_set))
      return nullptr;
    return found;
  }();
  return library.get();
}

std::vector<hwloc_obj_t> Objects(const Library& library, hwloc_topology_t topology,
                                 hwloc_obj_type_t type) {
  const int depth = library.type_depth(topology, type);
  const unsigned count = library.count(topology, depth);
  std::vector<hwloc_obj_t> objects;
  objects.reserve(count);
  for (unsigned i = 0; i < count; ++i) objects.push_back(library.object(topology, depth, i));
  return objects;
}

std::vector<int> Cpus(const Library& library, hwloc_const_cpuset_t set) {
  std::vector<int> cpus;
  for (int cpu = library.next(set, -1); cpu >= 0; cpu = library.next(set, cpu)) cpus.push_back(cpu);
  return cpus;
}

CpuFacts Read(const Library& library, hwloc_topology_t topology) {
  CpuFacts facts;
  const std::vector<hwloc_obj_t> numa = Objects(library, topology, HWLOC_OBJ_NUMANODE);
  for (hwloc_obj* node : numa)
    facts.numa.push_back({.numa = static_cast<int>(node->os_index),
                          .memory_bytes = node->attr->numanode.local_memory});
  if (facts.numa.empty()) facts.numa.push_back({.numa = 0});
  std::ranges::sort(facts.numa, {}, &NumaFact::numa);

  // Machines without a notion of cores have processors only.
  std::vector<hwloc_obj_t> cores = Objects(library, topology, HWLOC_OBJ_CORE);
  if (cores.empty()) cores = Objects(library, topology, HWLOC_OBJ_PU);
  std::vector<std::pair<CoreFact, hwloc_obj_t>> found;
  for (hwloc_obj* object : cores) {
    CoreFact core{.cpus = Cpus(library, object->cpuset)};
    if (core.cpus.empty()) continue;
    core.cpu = core.cpus.front();
    core.numa = facts.numa.front().numa;
    for (hwloc_obj* node : numa) {
      if (library.is_set(node->cpuset, static_cast<unsigned>(core.cpu)) != 0)
        core.numa = static_cast<int>(node->os_index);
    }
    hwloc_obj_t cache = nullptr;
    for (hwloc_obj_t above = object->parent; above != nullptr; above = above->parent) {
      if (above->type >= HWLOC_OBJ_L1CACHE && above->type <= HWLOC_OBJ_L5CACHE) cache = above;
      if (above->type != HWLOC_OBJ_PACKAGE) continue;
      core.package = static_cast<int>(above->os_index);
      if (cache == nullptr) cache = above;
    }
    found.emplace_back(std::move(core), cache);
  }
  std::ranges::sort(found, {}, [](const auto& entry) { return entry.first.cpu; });
  std::map<hwloc_obj_t, int> caches;
  for (auto& [core, cache] : found) {
    core.cache = caches.try_emplace(cache, static_cast<int>(caches.size())).first->second;
    facts.cores.push_back(std::move(core));
  }
  return facts;
}

}  // namespace

Result<CpuFacts> ReadHwlocCpus() {
  const Library* const library = Load();
  if (library == nullptr)
    return Status(StatusCode::kUnsupported, "libhwloc.so.15 is not installed");
  hwloc_topology_t topology = nullptr;
  if (library->init(&topology) != 0)
    return Status(StatusCode::kInternal, "hwloc_topology_init fails");
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> owner(topology,
                                                                          library->destroy);
  // Processors outside this process's cpuset, too: the affinity mask is looked at elsewhere.
  library->set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (library->load(topology) != 0)
    return Status(StatusCode::kInternal, "hwloc_topology_load fails");
  CpuFacts facts = Read(*library, topology);
  if (facts.cores.empty()) return Status(StatusCode::kInternal, "hwloc shows no processor");
  return facts;
}

}  // namespace tidegate

#else

namespace tidegate {

Result<CpuFacts> ReadHwlocCpus() {
  return Status(StatusCode::kUnsupported, "built without hwloc.h");
}

}  // namespace tidegate

#endif
