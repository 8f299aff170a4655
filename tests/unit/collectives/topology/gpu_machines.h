#pragma once

#include <string>
#include <utility>
#include <vector>

#include "collectives/topology/discovery.h"
#include "common/drivers/nvml/nvml_api.h"
#include "tests/unit/common/drivers/sysfs/sysfs_tree.h"

namespace tidegate {

/// NVML as a test says it is.
class FakeNvml : public NvmlApi {
 public:
  explicit FakeNvml(Result<std::vector<NvmlGpu>> gpus) : gpus_(std::move(gpus)) {}
  Result<std::vector<NvmlGpu>> Gpus() override { return gpus_; }

 private:
  Result<std::vector<NvmlGpu>> gpus_;
};

// Servers of two sockets as sysfs shows them, written into `tree`, and the GPUs as NVML states
// them. NICs are mlx5_0, mlx5_1, ... in the order of their addresses, all ports up.

/// 8 H100, 18 NVLinks of 25e9 byte/s of each to NVSwitches. Below each of eight PCIe 5.0 switches
/// one GPU and one NIC of 400 Gbit/s. Also what no plan may use: the BMC's graphics and a NIC
/// without a cable.
std::vector<NvmlGpu> AddDgxH100(SysfsTree& tree);

/// 8 A100, 12 NVLinks of 25e9 byte/s of each to NVSwitches. Below each of four PCIe 4.0 switches
/// two NICs of 200 Gbit/s and, each behind a switch of its own, two GPUs.
std::vector<NvmlGpu> AddHgxA100(SysfsTree& tree);

/// 8 GPUs without NVLink. On each socket a PCIe 4.0 switch with a NIC of 100 Gbit/s, two GPUs and
/// another switch, below which the other two are.
std::vector<NvmlGpu> AddPcieServer(SysfsTree& tree);

/// 8 A100 with their NVLinks and 8 NICs of 200 Gbit/s in a virtual machine, each alone behind an
/// emulated root port that says PCIe 1.0 x1.
std::vector<NvmlGpu> AddVirtualMachine(SysfsTree& tree);

/// As AddVirtualMachine, but all devices hang on the host bridge itself, and neither a rate nor
/// a NUMA node of any is stated.
std::vector<NvmlGpu> AddFlatVirtualMachine(SysfsTree& tree);

/// What discovery reads of these, and the node `id` that it describes with a rank on each GPU, in
/// NVML's order.
MachineFacts ReadGpuMachine(const SysfsTree& tree, NvmlApi& nvml);
Result<Topology> DescribeGpus(const SysfsTree& tree, const std::vector<NvmlGpu>& gpus,
                              const std::string& id);

}  // namespace tidegate
