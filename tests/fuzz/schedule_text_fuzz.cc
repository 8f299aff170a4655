// Whatever the text, reading it as a schedule ends with an error or with a schedule that is written
// back as the same text, and as JSON that reads as the same schedule.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "tests/fuzz/schedule_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidegate;  // NOLINT: a program of one function
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Schedule> read = ParseScheduleText(text);
  if (!read.ok()) {
    TIDEGATE_CHECK(!read.status().message().empty());
    return 0;
  }
  TIDEGATE_CHECK(ToText(read.value()) == text);
  CheckScheduleProperties(read.value());
  return 0;
}
