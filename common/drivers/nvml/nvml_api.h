#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tidegate {

/// One NVLink of a GPU that is up.
struct NvlinkFact {
  enum class To { kGpu, kSwitch, kCpu };
  To to = To::kSwitch;
  std::string address = {};  ///< PCI address of the GPU it leads to; empty for others.
  double bandwidth_Bps = 0;  ///< Each way.
};

struct NvmlGpu {
  int index = 0;
  std::string address = {};  ///< PCI address, "0000:1a:00.0" as sysfs writes it.
  std::string name;
  double memory_Bps = 0;  ///< Of its memory, reads and writes together.
  std::vector<NvlinkFact> links = {};
};

/// What the NVIDIA management library knows about this machine's GPUs. Behind an interface so that
/// nothing links it: the implementation loads it at run time where there is one, tests bring
/// facts of their own.
class NvmlApi {
 public:
  virtual ~NvmlApi() = default;
  /// All GPUs of the machine, by index. kUnsupported where the library or its driver is missing.
  virtual Result<std::vector<NvmlGpu>> Gpus() = 0;
};

/// "0000:1a:00.0", as sysfs writes an address, of "00000000:1A:00.0", as the library does.
std::string SysfsAddress(std::string_view nvml_address);

}  // namespace tidegate
