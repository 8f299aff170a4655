#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace tidegate {

enum class PciKind { kGpu, kNic };

/// A GPU or a NIC on the PCI bus.
struct PciFact {
  PciKind kind = PciKind::kNic;
  std::string address = {};               ///< "0000:1a:00.0".
  std::vector<std::string> bridges = {};  ///< Addresses from the root port to the one it hangs on.
  std::vector<double> bridge_Bps = {};    ///< Rate of each bridge's link upwards; 0: not known.
  int vendor = 0;
  int numa = -1;                        ///< -1: not known.
  double bandwidth_Bps = 0;             ///< Of its slot, each way; 0: not known.
  std::vector<std::string> names = {};  ///< Network interfaces and RDMA devices.
  bool is_up = false;                   ///< NIC: one of its ports has a carrier.
  double port_Bps = 0;                  ///< NIC: sum over its ports that are up; 0: not known.

  bool operator==(const PciFact&) const = default;
};

using PciSource = std::function<Result<std::vector<PciFact>>()>;

/// Byte/s each way of a PCIe link: lanes times transfer rate less the line code (8b/10b up to 5
/// GT/s, 128b/130b above).
double PcieBandwidth(double gigatransfers, int lanes);

/// Reads /sys/bus/pci/devices: GPUs (display and 3D controllers, the ones that BMCs emulate left
/// out) and NICs (Ethernet, InfiniBand), by address. Empty where there is no PCI bus, as in many
/// virtual machines; that is no error.
Result<std::vector<PciFact>> ReadSysfsPci(const std::string& root = "/");

}  // namespace tidegate
