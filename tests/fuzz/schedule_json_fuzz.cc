// Whatever the text, reading it as a schedule in JSON ends with an error or with a schedule that
// reads back as itself from either form.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "tests/fuzz/schedule_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidegate;  // NOLINT: a program of one function
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Schedule> read = ParseScheduleJson(text, {.bytes = std::size_t{1} << 16});
  if (!read.ok()) {
    TIDEGATE_CHECK(!read.status().message().empty());
    return 0;
  }
  CheckScheduleProperties(read.value());
  return 0;
}
