#include "tests/unit/collectives/topology/gpu_machines.h"

#include <array>
#include <cstdio>

#include "common/check.h"

namespace tidegate {
namespace {

constexpr int kNvidia = 0x10de;
constexpr int kMellanox = 0x15b3;
constexpr int kIntel = 0x8086;
constexpr int kBroadcom = 0x1000;
constexpr int kAspeed = 0x1a03;
constexpr const char* kGpuClass = "0x030200";
constexpr const char* kNicClass = "0x020700";
constexpr const char* kBridgeClass = "0x060400";

/// A PCI link as sysfs states it; no speed: it states none.
struct Slot {
  std::string speed = {};
  int lanes = 0;
  int numa = -1;
};

Slot Gen4(int numa) { return {"16.0 GT/s PCIe", 16, numa}; }
Slot Gen5(int numa) { return {"32.0 GT/s PCIe", 16, numa}; }

std::string Address(int bus, int device) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0000:%02x:%02x.0", static_cast<unsigned>(bus),
                static_cast<unsigned>(device));
  return text.data();
}

/// Writes devices and counts buses as firmware does: depth first.
class PciWriter {
 public:
  explicit PciWriter(SysfsTree& tree) : tree_(tree) {}

  /// A host bridge that owns the buses from `bus` on; what hangs on it follows.
  std::string HostBridge(int bus) {
    bus_ = bus;
    host_bus_ = bus;
    return "pci" + Address(bus, 0).substr(0, 7);
  }

  std::string RootPort(const std::string& host, int device, const Slot& slot) {
    return Bridge(host + "/" + Address(host_bus_, device), kIntel, slot);
  }

  /// A switch below a root port or a port of another switch.
  struct Switch {
    std::string upstream;
    int bus = 0;  ///< Of its downstream ports.
  };
  Switch AddSwitch(const std::string& above, const Slot& slot) {
    const std::string upstream = Bridge(above + "/" + Address(++bus_, 0), kBroadcom, slot);
    return {upstream, ++bus_};
  }
  std::string Port(const Switch& of, int device, const Slot& slot) {
    return Bridge(of.upstream + "/" + Address(of.bus, device), kBroadcom, slot);
  }

  /// Alone on the bus below the port `above`.
  void AddGpu(const std::string& above, const Slot& slot) { AddGpuAt(above, ++bus_, 0, slot); }
  void AddGpuAt(const std::string& above, int bus, int device, const Slot& slot) {
    const std::string address = Address(bus, device);
    tree_.AddPci(above + "/" + address, kGpuClass, kNvidia, slot.speed, slot.lanes, slot.numa);
    NvmlGpu gpu;
    gpu.index = static_cast<int>(gpus_.size());
    gpu.address = SysfsAddress("0000" + address);  // the library writes eight digits
    gpus_.push_back(std::move(gpu));
  }

  void AddNic(const std::string& above, int gigabits, const Slot& slot) {
    AddNicAt(above, ++bus_, 0, gigabits, slot);
  }
  void AddNicAt(const std::string& above, int bus, int device, int gigabits, const Slot& slot) {
    const std::string folder = tree_.AddPci(above + "/" + Address(bus, device), kNicClass,
                                            kMellanox, slot.speed, slot.lanes, slot.numa);
    const std::string port = folder + "/infiniband/mlx5_" + std::to_string(nics_++) + "/ports/1";
    tree_.Write(port + "/state", gigabits > 0 ? "4: ACTIVE" : "1: DOWN");
    tree_.Write(port + "/rate", std::to_string(gigabits > 0 ? gigabits : 10) + " Gb/sec (4X)");
  }

  /// The GPUs so far, each with `links` NVLinks to NVSwitches.
  std::vector<NvmlGpu> Gpus(const std::string& name, double memory_Bps, int links) const {
    std::vector<NvmlGpu> gpus = gpus_;
    for (NvmlGpu& gpu : gpus) {
      gpu.name = name;
      gpu.memory_Bps = memory_Bps;
      for (int link = 0; link < links; ++link)
        gpu.links.push_back({.to = NvlinkFact::To::kSwitch, .bandwidth_Bps = 25e9});
    }
    return gpus;
  }

 private:
  std::string Bridge(const std::string& path, int vendor, const Slot& slot) {
    tree_.AddPci(path, kBridgeClass, vendor, slot.speed, slot.lanes, slot.numa);
    return path;
  }

  SysfsTree& tree_;
  int bus_ = 0;
  int host_bus_ = 0;
  int nics_ = 0;
  std::vector<NvmlGpu> gpus_;
};

}  // namespace

std::vector<NvmlGpu> AddDgxH100(SysfsTree& tree) {
  AddTwoSockets(tree);
  PciWriter pci(tree);
  for (int i = 0; i < 8; ++i) {
    const Slot slot = Gen5(i / 4);
    const std::string root = pci.RootPort(pci.HostBridge(0x10 + 0x10 * i), 1, slot);
    const PciWriter::Switch below = pci.AddSwitch(root, slot);
    pci.AddNic(pci.Port(below, 0, slot), 400, slot);
    pci.AddGpu(pci.Port(below, 1, slot), slot);
  }
  const std::string host = pci.HostBridge(0xf0);
  pci.AddNic(pci.RootPort(host, 1, Gen4(1)), 0, Gen4(1));
  tree.AddPci(host + "/" + Address(0xf0, 2), "0x030000", kAspeed);
  return pci.Gpus("NVIDIA H100 80GB HBM3", 3.35e12, 18);
}

std::vector<NvmlGpu> AddHgxA100(SysfsTree& tree) {
  AddTwoSockets(tree);
  PciWriter pci(tree);
  for (int i = 0; i < 4; ++i) {
    const Slot slot = Gen4(i / 2);
    const std::string root = pci.RootPort(pci.HostBridge(0x20 + 0x20 * i), 1, slot);
    const PciWriter::Switch top = pci.AddSwitch(root, slot);
    for (int nic = 0; nic < 2; ++nic) pci.AddNic(pci.Port(top, nic, slot), 200, slot);
    for (int gpu = 0; gpu < 2; ++gpu) {
      const PciWriter::Switch own = pci.AddSwitch(pci.Port(top, 2 + gpu, slot), slot);
      pci.AddGpu(pci.Port(own, 0, slot), slot);
    }
  }
  return pci.Gpus("NVIDIA A100-SXM4-80GB", 2.04e12, 12);
}

std::vector<NvmlGpu> AddPcieServer(SysfsTree& tree) {
  AddTwoSockets(tree);
  PciWriter pci(tree);
  for (int socket = 0; socket < 2; ++socket) {
    const Slot slot = Gen4(socket);
    const std::string root = pci.RootPort(pci.HostBridge(0x40 + 0x40 * socket), 1, slot);
    const PciWriter::Switch top = pci.AddSwitch(root, slot);
    pci.AddNic(pci.Port(top, 0, slot), 100, slot);
    for (int gpu = 0; gpu < 2; ++gpu) pci.AddGpu(pci.Port(top, 1 + gpu, slot), slot);
    const PciWriter::Switch further = pci.AddSwitch(pci.Port(top, 3, slot), slot);
    for (int gpu = 0; gpu < 2; ++gpu) pci.AddGpu(pci.Port(further, gpu, slot), slot);
  }
  return pci.Gpus("NVIDIA L40S", 0.864e12, 0);
}

std::vector<NvmlGpu> AddVirtualMachine(SysfsTree& tree) {
  AddTwoSockets(tree);
  PciWriter pci(tree);
  for (int socket = 0; socket < 2; ++socket) {
    const Slot slot{"2.5 GT/s PCIe", 1, socket};
    const std::string host = pci.HostBridge(0x40 + 0x40 * socket);
    for (int i = 0; i < 4; ++i) pci.AddGpu(pci.RootPort(host, 1 + i, slot), slot);
    for (int i = 0; i < 4; ++i) pci.AddNic(pci.RootPort(host, 5 + i, slot), 200, slot);
  }
  return pci.Gpus("NVIDIA A100-SXM4-80GB", 2.04e12, 12);
}

std::vector<NvmlGpu> AddFlatVirtualMachine(SysfsTree& tree) {
  AddTwoSockets(tree);
  PciWriter pci(tree);
  const std::string host = pci.HostBridge(0);
  for (int i = 0; i < 8; ++i) pci.AddGpuAt(host, 0, 4 + i, Slot{});
  for (int i = 0; i < 8; ++i) pci.AddNicAt(host, 0, 12 + i, 200, Slot{});
  return pci.Gpus("NVIDIA A100-SXM4-80GB", 2.04e12, 12);
}

MachineFacts ReadGpuMachine(const SysfsTree& tree, NvmlApi& nvml) {
  DiscoverySources sources = SystemSources(tree.root());
  sources.nvml = &nvml;
  Result<MachineFacts> facts = ReadMachine(sources);
  TIDEGATE_CHECK(facts.ok());
  return std::move(facts).value();
}

Result<Topology> DescribeGpus(const SysfsTree& tree, const std::vector<NvmlGpu>& gpus,
                              const std::string& id) {
  FakeNvml nvml(gpus);
  std::vector<RankSite> sites;
  for (const NvmlGpu& gpu : gpus) sites.push_back({.gpu_address = gpu.address});
  return DescribeMachine(ReadGpuMachine(tree, nvml), id, sites, 8);
}

}  // namespace tidegate
