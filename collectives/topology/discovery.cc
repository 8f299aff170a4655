#include "collectives/topology/discovery.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "collectives/topology/hwloc_source.h"

namespace tidegate {
namespace {

// Declared figures of an ordinary server, for what no source states and calibration leaves alone.
constexpr double kCacheBps = 40e9;  // between a core and its last-level cache
constexpr double kCacheSeconds = 1e-8;
constexpr double kMemorySeconds = 8e-8;
constexpr double kSocketBps = 50e9;      // between NUMA nodes
constexpr double kSocketSeconds = 1e-7;  // at distance 20; 10 is the node itself
constexpr double kPcieBps = 31.5e9;      // 4.0 x16
constexpr double kPcieSeconds = 3e-7;
constexpr double kGpuCopyBps = 500e9;
constexpr double kGpuSeconds = 1e-6;  // a kernel or a copy starts
constexpr double kNvlinkSeconds = 5e-7;
constexpr double kPortBps = 1.25e9;  // 10 Gbit/s

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

class MachineBuilder {
 public:
  MachineBuilder(const MachineFacts& facts, const std::string& node_id, const MachineRates& rates)
      : facts_(facts), node_id_(node_id), rates_(rates) {
    Add(VertexKind::kNode, kNone, "", kNone);
    AddProcessors();
    for (const PciFact& device : facts_.devices) AddDevice(device);
    // Those that NVML alone knows: their slot is hidden, a way to the host there is.
    for (const NvmlGpu& gpu : facts_.gpus) AddGpu(gpu.address, gpu.index, kNone, 0);
    AddNvlinks();
  }

  Status AddRank(const RankSite& site, int number, double copy_Bps) {
    VertexId at = kNone;
    double bandwidth = copy_Bps;
    double latency = rates_.signal_s / 2;
    if (!site.gpu_address.empty()) {
      const auto gpu = gpus_.find(site.gpu_address);
      if (gpu == gpus_.end())
        return Bad("rank " + std::to_string(number) + " of node " + node_id_ + " runs on GPU " +
                   site.gpu_address + ", which this machine does not show");
      at = gpu->second;
      bandwidth = GpuCopyBps(site.gpu_address);
      latency = kGpuSeconds;
    } else {
      at = SiteOf(site.cpus);
      if (at == kNone)
        return Bad("rank " + std::to_string(number) + " of node " + node_id_ +
                   " may use no processor that this machine shows");
    }
    const VertexId rank = Add(VertexKind::kRank, 0, "rank" + std::to_string(number), number);
    Join(rank, at, bandwidth, latency, PathClass::kLoc);
    return Status();
  }

  TopologyParts Take() { return std::move(parts_); }

 private:
  VertexId Add(VertexKind kind, VertexId parent, const std::string& id, std::int32_t number) {
    Vertex vertex;
    vertex.kind = kind;
    vertex.parent = parent;
    vertex.number = number;
    vertex.id = id.empty() ? node_id_ : node_id_ + "/" + id;
    parts_.vertices.push_back(std::move(vertex));
    return static_cast<VertexId>(parts_.vertices.size()) - 1;
  }

  void Join(VertexId a, VertexId b, double bandwidth, double latency, PathClass path,
            bool shared = false) {
    parts_.links.push_back({.a = a,
                            .b = b,
                            .latency_s = latency,
                            .bandwidth_Bps = {bandwidth, bandwidth},
                            .shared = shared,
                            .path = path});
  }

  void AddProcessors() {
    const std::vector<NumaFact>& numa = facts_.cpus.numa;
    for (const NumaFact& fact : numa)
      numa_[fact.numa] = Add(VertexKind::kNuma, 0, "numa" + std::to_string(fact.numa), fact.numa);
    for (std::size_t i = 0; i < numa.size(); ++i) {
      for (std::size_t j = i + 1; j < numa.size(); ++j) {
        const int distance = j < numa[i].distance.size() ? numa[i].distance[j] : 20;
        Join(numa_[numa[i].numa], numa_[numa[j].numa], kSocketBps,
             kSocketSeconds * std::clamp((distance - 10) / 10.0, 0.1, 10.0), PathClass::kSys);
      }
    }
    for (const CoreFact& core : facts_.cpus.cores) {
      const auto [cache, is_new] = caches_.try_emplace(core.cache, kNone);
      if (is_new) {
        const VertexId home = NumaOf(core.numa);
        cache->second =
            Add(VertexKind::kCache, home, "cache" + std::to_string(core.cache), core.cache);
        Join(cache->second, home, rates_.memory_Bps, kMemorySeconds, PathClass::kLoc, true);
      }
      const VertexId vertex =
          Add(VertexKind::kCore, cache->second, "core" + std::to_string(core.cpu), core.cpu);
      Join(vertex, cache->second, kCacheBps, kCacheSeconds, PathClass::kLoc);
      for (const int cpu : core.cpus) core_of_cpu_[cpu] = vertex;
    }
  }

  VertexId NumaOf(int number) {
    const auto found = numa_.find(number);
    return found == numa_.end() ? numa_.begin()->second : found->second;
  }

  /// The node itself as a place: for what belongs to no NUMA node.
  VertexId Whole() {
    if (!std::exchange(has_whole_, true)) {
      // SYS, lest it be a shorter way from one NUMA node to another.
      for (const auto& [number, vertex] : numa_)
        Join(0, vertex, rates_.memory_Bps, 0, PathClass::kSys);
    }
    return 0;
  }

  /// The smallest place that has all of `cpus`; kNone if none of them is there.
  VertexId SiteOf(const std::vector<int>& cpus) {
    std::set<VertexId> places;
    for (const auto& [cpu, core] : core_of_cpu_) {
      if (cpus.empty() || std::ranges::find(cpus, cpu) != cpus.end()) places.insert(core);
    }
    if (places.empty()) return kNone;
    // From cores to caches to NUMA nodes to the node.
    while (places.size() > 1) {
      std::set<VertexId> above;
      for (const VertexId place : places)
        above.insert(parts_.vertices[static_cast<std::size_t>(place)].parent);
      places = std::move(above);
    }
    return *places.begin() == 0 ? Whole() : *places.begin();
  }

  /// Where a device with these bridges hangs. Of a chain root port, upstream, downstream, upstream,
  /// ... each pair is one switch; a device below the root port alone hangs on the host bridge.
  VertexId Above(const PciFact& device) {
    VertexId at = device.numa >= 0 || numa_.size() == 1 ? NumaOf(device.numa) : Whole();
    for (std::size_t i = 1; i < device.bridges.size(); i += 2) {
      const auto [found, is_new] = bridges_.try_emplace(device.bridges[i], kNone);
      if (is_new) {
        found->second = Add(VertexKind::kSwitch, at, "pci-" + device.bridges[i], kNone);
        Join(found->second, at, Known(device.bridge_Bps[i]), kPcieSeconds, PathClass::kPix);
      }
      at = found->second;
    }
    return at;
  }

  static double Known(double bandwidth) { return bandwidth > 0 ? bandwidth : kPcieBps; }

  void AddDevice(const PciFact& device) {
    if (device.kind == PciKind::kNic) {
      if (!device.is_up) return;
      const VertexId above = Above(device);
      const VertexId nic = Add(VertexKind::kNic, above,
                               device.names.empty() ? device.address : device.names.back(), kNone);
      Vertex& vertex = parts_.vertices.back();
      vertex.bandwidth_Bps = device.port_Bps > 0 ? device.port_Bps : kPortBps;
      vertex.rail = rails_++;
      Join(nic, above, Known(device.bandwidth_Bps), kPcieSeconds, PathClass::kPix);
      return;
    }
    int index = kNone;
    for (const NvmlGpu& gpu : facts_.gpus) {
      if (gpu.address == device.address) index = gpu.index;
    }
    AddGpu(device.address, index, Above(device), device.bandwidth_Bps);
  }

  /// Unless it is there already. `above` kNone: the node itself.
  void AddGpu(const std::string& address, int index, VertexId above, double bandwidth) {
    const auto [found, is_new] = gpus_.try_emplace(address, kNone);
    if (!is_new) return;
    if (above == kNone) above = Whole();
    found->second = Add(VertexKind::kGpu, above, "gpu-" + address, index);
    Join(found->second, above, Known(bandwidth), kPcieSeconds, PathClass::kPix);
  }

  void AddNvlinks() {
    std::map<std::pair<VertexId, VertexId>, double> links;
    std::optional<VertexId> nvswitch;
    for (const NvmlGpu& gpu : facts_.gpus) {
      const VertexId at = gpus_.at(gpu.address);
      for (const NvlinkFact& link : gpu.links) {
        VertexId to = kNone;
        if (link.to == NvlinkFact::To::kSwitch) {
          if (!nvswitch) nvswitch = Add(VertexKind::kSwitch, 0, "nvswitch", kNone);
          to = *nvswitch;
        } else if (link.to == NvlinkFact::To::kGpu && gpus_.contains(link.address)) {
          to = gpus_.at(link.address);
          if (to < at) continue;  // the other end states it, too
        } else if (link.to == NvlinkFact::To::kCpu) {
          to = parts_.vertices[static_cast<std::size_t>(at)].parent;
        }
        if (to != kNone && to != at) links[{at, to}] += link.bandwidth_Bps;
      }
    }
    for (const auto& [ends, bandwidth] : links) {
      const VertexKind kind = parts_.vertices[static_cast<std::size_t>(ends.second)].kind;
      const bool is_c2c = kind == VertexKind::kNuma || kind == VertexKind::kNode;
      if (bandwidth <= 0) continue;
      if (is_c2c) {
        // In place of PCIe between the same two, or beside it under a name of its own.
        parts_.link_ids[static_cast<std::int32_t>(parts_.links.size())] =
            parts_.vertices[static_cast<std::size_t>(ends.first)].id + "-c2c";
      }
      Join(ends.first, ends.second, bandwidth, kNvlinkSeconds,
           is_c2c ? PathClass::kC2c : PathClass::kNvl);
    }
  }

  double GpuCopyBps(const std::string& address) const {
    for (const NvmlGpu& gpu : facts_.gpus) {
      if (gpu.address == address && gpu.memory_Bps > 0) return gpu.memory_Bps / 2;
    }
    return kGpuCopyBps;
  }

  const MachineFacts& facts_;
  const std::string& node_id_;
  const MachineRates rates_;
  TopologyParts parts_;
  std::map<int, VertexId> numa_;
  std::map<int, VertexId> caches_;
  std::map<int, VertexId> core_of_cpu_;
  std::map<std::string, VertexId> bridges_;
  std::map<std::string, VertexId> gpus_;
  std::int16_t rails_ = 0;
  bool has_whole_ = false;
};

}  // namespace

DiscoverySources SystemSources(const std::string& root) {
  return {.cpus = [root]() -> Result<CpuFacts> {
            // hwloc describes the machine that runs, not a tree of files.
            if (root == "/") {
              if (Result<CpuFacts> facts = ReadHwlocCpus(); facts.ok()) return facts;
            }
            return ReadSysfsCpus(root);
          },
          .pci = [root] { return ReadSysfsPci(root); }};
}

Result<MachineFacts> ReadMachine(const DiscoverySources& sources) {
  MachineFacts facts;
  if (!sources.cpus) return Bad("no source of facts about processors");
  Result<CpuFacts> cpus = sources.cpus();
  if (!cpus.ok()) return cpus.status();
  facts.cpus = std::move(cpus).value();
  if (sources.pci) {
    if (Result<std::vector<PciFact>> devices = sources.pci(); devices.ok())
      facts.devices = std::move(devices).value();
  }
  if (sources.nvml != nullptr) {
    if (Result<std::vector<NvmlGpu>> gpus = sources.nvml->Gpus(); gpus.ok())
      facts.gpus = std::move(gpus).value();
  }
  return facts;
}

Result<Topology> DescribeMachine(const MachineFacts& facts, const std::string& node_id,
                                 std::span<const RankSite> sites, int usable_cpus,
                                 const MachineRates& rates) {
  if (node_id.empty() || node_id.find('/') != std::string::npos)
    return Bad("a node cannot be called \"" + node_id + "\"; use a name without \"/\"");
  if (facts.cpus.numa.empty() || facts.cpus.cores.empty())
    return Bad("a machine without processors or NUMA nodes");
  MachineBuilder builder(facts, node_id, rates);
  const auto on_cpu =
      std::ranges::count_if(sites, [](const RankSite& site) { return site.gpu_address.empty(); });
  const double share = std::min(
      1.0, std::max(1, usable_cpus) / static_cast<double>(std::max<std::ptrdiff_t>(on_cpu, 1)));
  for (std::size_t i = 0; i < sites.size(); ++i) {
    Status status = builder.AddRank(sites[i], static_cast<int>(i), rates.copy_Bps * share);
    if (!status.ok()) return status;
  }
  return Topology::Make(builder.Take());
}

Result<Topology> JoinNodes(std::span<const Topology> nodes, std::span<const std::vector<int>> ranks,
                           const FabricSpec& fabric) {
  if (nodes.size() != ranks.size() || nodes.empty())
    return Bad("ranks of " + std::to_string(ranks.size()) + " nodes for " +
               std::to_string(nodes.size()) + " nodes");
  TopologyParts parts;
  std::vector<std::vector<VertexId>> nics(nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const TopologyParts& node = nodes[n].parts();
    const auto vertices = static_cast<VertexId>(parts.vertices.size());
    const auto links = static_cast<std::int32_t>(parts.links.size());
    if (nodes[n].nodes() != 1 || static_cast<std::size_t>(nodes[n].ranks()) != ranks[n].size())
      return Bad("node " + std::to_string(n) + " has " + std::to_string(nodes[n].ranks()) +
                 " ranks, of which " + std::to_string(ranks[n].size()) + " are numbered");
    for (Vertex vertex : node.vertices) {
      if (vertex.parent != kNone) vertex.parent += vertices;
      if (vertex.kind == VertexKind::kRank)
        vertex.number = ranks[n][static_cast<std::size_t>(vertex.number)];
      if (vertex.kind == VertexKind::kNic)
        nics[n].push_back(static_cast<VertexId>(parts.vertices.size()));
      parts.vertices.push_back(std::move(vertex));
    }
    for (Link link : node.links) {
      link.a += vertices;
      link.b += vertices;
      parts.links.push_back(link);
    }
    for (const auto& [index, id] : node.link_ids) parts.link_ids.emplace(links + index, id);
    if (nodes.size() > 1 && nics[n].empty()) {
      // A machine that shows no NIC still has an address.
      Vertex nic;
      nic.kind = VertexKind::kNic;
      nic.parent = vertices + nodes[n].node_vertex(0);
      nic.rail = 0;
      nic.bandwidth_Bps = kPortBps;
      nic.id = nodes[n].vertex(nodes[n].node_vertex(0)).id + "/nic";
      const auto at = static_cast<VertexId>(parts.vertices.size());
      for (VertexId v = 0; v < static_cast<VertexId>(node.vertices.size()); ++v) {
        if (node.vertices[static_cast<std::size_t>(v)].kind == VertexKind::kNuma)
          parts.links.push_back({.a = at,
                                 .b = vertices + v,
                                 .latency_s = kPcieSeconds,
                                 .bandwidth_Bps = {kPcieBps, kPcieBps},
                                 .path = PathClass::kPix});
      }
      parts.vertices.push_back(std::move(nic));
      nics[n].push_back(at);
    }
  }
  if (nodes.size() > 1) {
    if (Status status = AddFabric(fabric, nics, parts); !status.ok()) return status;
  }
  return Topology::Make(std::move(parts));
}

}  // namespace tidegate
