#include "common/drivers/sysfs/pci_facts.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "common/drivers/sysfs/sysfs_file.h"

namespace tidegate {
namespace {

using std::filesystem::path;

constexpr int kAspeed = 0x1a03;  // graphics of a BMC
constexpr int kMatrox = 0x102b;  // likewise

/// "0000:1a:00.0"
bool IsAddress(const std::string& name) {
  return name.size() >= 12 && name[name.size() - 2] == '.' && name[name.size() - 5] == ':' &&
         name[name.size() - 8] == ':';
}

std::optional<PciKind> KindOf(const path& device, int vendor) {
  switch (ReadSysfsNumber(device / "class").value_or(0) >> 8) {
    case 0x0200:
    case 0x0207:
      return PciKind::kNic;
    case 0x0300:
    case 0x0302:
    case 0x1200:  // processing accelerators
      if (vendor == kAspeed || vendor == kMatrox) return std::nullopt;
      return PciKind::kGpu;
    default:
      return std::nullopt;
  }
}

/// Rate of the link between `device` and the bridge that it hangs on. A device that sleeps has
/// lowered its speed, not its width: the speed that both ends can, times the lanes that are in use.
double LinkOf(const path& device) {
  double speed = 0;
  for (const path& end : {device, device.parent_path()}) {
    // "16.0 GT/s PCIe", or "Unknown"
    const std::string text = ReadSysfsLine(end / "max_link_speed").value_or("");
    const double most = std::strtod(text.c_str(), nullptr);
    if (most > 0) speed = speed > 0 ? std::min(speed, most) : most;
  }
  const auto lanes = ReadSysfsNumber(device / "current_link_width").value_or(0);
  return PcieBandwidth(speed, static_cast<int>(std::clamp<std::int64_t>(lanes, 0, 32)));
}

void ReadPorts(const path& device, PciFact& fact) {
  double ethernet = 0;
  for (const std::string& name : ListFolder(device / "net")) {
    const path port = device / "net" / name;
    fact.names.push_back(name);
    fact.is_up = fact.is_up || ReadSysfsNumber(port / "carrier") == 1;
    // Mbit/s; -1 while the link is down and under many hypervisors.
    const std::int64_t speed = ReadSysfsNumber(port / "speed").value_or(0);
    if (speed > 0) ethernet += static_cast<double>(speed) * 1e6 / 8;
  }
  double rdma = 0;
  for (const std::string& name : ListFolder(device / "infiniband")) {
    fact.names.push_back(name);
    for (const std::string& number : ListFolder(device / "infiniband" / name / "ports")) {
      const path port = device / "infiniband" / name / "ports" / number;
      // "4: ACTIVE"; "400 Gb/sec (4X NDR)"
      if (!ReadSysfsLine(port / "state").value_or("").starts_with('4')) continue;
      fact.is_up = true;
      const std::string rate = ReadSysfsLine(port / "rate").value_or("");
      rdma += std::max(0.0, std::strtod(rate.c_str(), nullptr)) * 1e9 / 8;
    }
  }
  fact.port_Bps = rdma > 0 ? rdma : ethernet;
}

}  // namespace

double PcieBandwidth(double gigatransfers, int lanes) {
  if (!(gigatransfers > 0) || lanes <= 0) return 0;
  const double code = gigatransfers < 6 ? 8.0 / 10 : 128.0 / 130;
  return gigatransfers * 1e9 * code / 8 * lanes;
}

Result<std::vector<PciFact>> ReadSysfsPci(const std::string& root) {
  const path bus = path(root) / "sys/bus/pci/devices";
  std::vector<PciFact> facts;
  for (const std::string& address : ListFolder(bus)) {
    const path device = bus / address;
    PciFact fact{.address = address};
    fact.vendor = static_cast<int>(ReadSysfsNumber(device / "vendor").value_or(0));
    const std::optional<PciKind> kind = KindOf(device, fact.vendor);
    if (!kind) continue;
    fact.kind = *kind;
    fact.numa = static_cast<int>(ReadSysfsNumber(device / "numa_node").value_or(-1));
    if (fact.kind == PciKind::kNic) ReadPorts(device, fact);
    // The entry is a link into /sys/devices, where a device lies in its bridge.
    std::error_code error;
    const path real = std::filesystem::canonical(device, error);
    if (!error) {
      fact.bandwidth_Bps = LinkOf(real);
      path above;
      for (const path& part : real.parent_path()) {
        above /= part;
        if (!IsAddress(part)) continue;
        fact.bridges.push_back(part);
        fact.bridge_Bps.push_back(LinkOf(above));
      }
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

}  // namespace tidegate
