#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "collectives/topology/fabric.h"
#include "collectives/topology/topology.h"
#include "common/config.h"
#include "common/drivers/nvml/nvml_api.h"
#include "common/drivers/sysfs/cpu_facts.h"
#include "common/drivers/sysfs/pci_facts.h"

namespace tidegate {

/// Where facts about this machine come from; tests bring their own. An empty function, or a null
/// pointer, means that there is nothing to ask.
struct DiscoverySources {
  CpuSource cpus = {};
  PciSource pci = {};
  NvmlApi* nvml = nullptr;
};

/// hwloc where ReadHwlocCpus can ask it, else sysfs, for processors; sysfs for PCI; no NVML.
DiscoverySources SystemSources(const std::string& root = "/");

/// What is known about one machine.
struct MachineFacts {
  CpuFacts cpus = {};
  std::vector<PciFact> devices = {};
  std::vector<NvmlGpu> gpus = {};
};

/// Asks all sources. Processors must be known (their source's error); devices that cannot be asked
/// for are taken for none.
Result<MachineFacts> ReadMachine(const DiscoverySources& sources);

/// What a rank runs on.
struct RankSite {
  std::vector<int> cpus = {};    ///< Processors it may use: its affinity mask. Empty: all.
  std::string gpu_address = {};  ///< PCI address of its GPU; empty: none.
};

/// Rates of a machine that no source states: by default declared ones, of an ordinary server, which
/// calibration replaces by measured ones.
struct MachineRates {
  double copy_Bps = 10e9;    ///< What one core copies.
  double memory_Bps = 50e9;  ///< Of a NUMA node's memory, reads and writes together.
  double signal_s = 9e-7;    ///< Until a rank that waits for a signal goes on.

  bool operator==(const MachineRates&) const = default;
};

/// The node of one machine called `node_id` (no "/"), with `sites[i]` as its rank i. A rank with
/// a GPU hangs on that; one without hangs on its core, where it has one of its own, else on its
/// cache or NUMA node, or on the node. No more cores count than `usable_cpus`, the affinity mask
/// under the cgroup's quota (UsableCpus): where that is less than the ranks' cores, the rate of
/// each rank is its share. Rates that no source states are `rates`, or constants of discovery.cc.
/// kInvalidArgument for sites that the machine does not have.
Result<Topology> DescribeMachine(const MachineFacts& facts, const std::string& node_id,
                                 std::span<const RankSite> sites, int usable_cpus,
                                 const MachineRates& rates = {});

/// Joins machines, each described alone, to a cluster; rank i of `nodes[n]` becomes rank
/// `ranks[n][i]`. Their NICs meet in `fabric`, unless there is one node.
Result<Topology> JoinNodes(std::span<const Topology> nodes, std::span<const std::vector<int>> ranks,
                           const FabricSpec& fabric);

/// What TIDEGATE_TOPO_FILE, which is read once, and TIDEGATE_TOPO_DUMP_FILE say. Errors are
/// kInvalidArgument and begin with the setting.
class TopologySettings {
 public:
  static Result<TopologySettings> Read(const Config& config);

  bool has_file() const { return !file_.empty(); }

  /// What the file makes of the discovered topology: itself without a file, amended by a partial
  /// one, replaced by a full one, which must have as many ranks. `members`: the file describes the
  /// job, of whose ranks the group has these; all that is known of the job is that it has no fewer
  /// ranks than `discovered`.
  Result<Topology> Apply(const Topology& discovered, std::span<const int> members = {}) const;

  /// Writes what is used to the dump file, if there is to be one.
  Status Dump(const Topology& topology) const;

 private:
  TopologySettings() = default;

  std::string file_;
  std::string text_;  ///< Of the file.
  std::string dump_file_;
};

/// Name of this process's node: `config.node_id`, else the boot id.
Result<std::string> NodeIdentity(const Config& config, const std::string& root = "/");

/// Of `ranks`, all with the caller's NodeIdentity and the caller among them: which can map
/// memory that the caller made. The transport implements it: containers may share a kernel, hence
/// a boot id, and no memory. Called by all of `ranks` at once.
using SharedMemoryProbe = std::function<Result<std::vector<bool>>(std::span<const int> ranks)>;

/// The identity of rank `self` once shared memory is confirmed: `identities[self]` and the lowest
/// rank with that identity that shares memory with it. Ranks whose results are equal are one
/// node (Placement::Make wants numbers: PlaceByIdentity). Sharing must be transitive, as it is
/// where it means a common namespace. An override by TIDEGATE_NODE_ID separates ranks, it joins
/// none.
Result<std::string> ConfirmIdentity(std::span<const std::string> identities, int self,
                                    const SharedMemoryProbe& probe);

/// The placement in which equal identities are one node.
Result<Placement> PlaceByIdentity(std::span<const std::string> identities);

}  // namespace tidegate
