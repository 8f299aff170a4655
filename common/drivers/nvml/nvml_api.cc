#include "common/drivers/nvml/nvml_api.h"

#include <algorithm>
#include <cctype>

namespace tidegate {

std::string SysfsAddress(std::string_view nvml_address) {
  std::string address(nvml_address);
  std::ranges::transform(address, address.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // The library writes the domain with eight digits, sysfs with four unless it needs more.
  const std::size_t domain = std::min(address.find(':'), address.size());
  const std::size_t zeros = std::min(address.find_first_not_of('0'), domain);
  if (domain > 4) address.erase(0, std::min(zeros, domain - 4));
  return address;
}

}  // namespace tidegate
