#include "offload/transfer/lane.h"

#include <limits>
#include <sstream>

namespace tidegate::offload {

std::string_view NameOf(Direction direction) {
  return direction == Direction::kDeviceToHost ? "device-to-host" : "host-to-device";
}

Status CheckChunk(const Chunk& chunk) {
  if (chunk.bytes == 0) return Status();
  const auto source = reinterpret_cast<std::uintptr_t>(chunk.source);
  const auto destination = reinterpret_cast<std::uintptr_t>(chunk.destination);
  constexpr std::uintptr_t kLast = std::numeric_limits<std::uintptr_t>::max();
  const char* problem = nullptr;
  if (source == 0 || destination == 0)
    problem = "has no address";
  else if (chunk.bytes - 1 > kLast - source || chunk.bytes - 1 > kLast - destination)
    problem = "goes beyond the end of the address space";
  else if (source < destination + chunk.bytes && destination < source + chunk.bytes)
    problem = "would be copied onto itself";
  if (problem == nullptr) return Status();
  std::ostringstream text;
  text << "a chunk of " << chunk.bytes << " bytes from 0x" << std::hex << source << " to 0x"
       << destination << " " << problem;
  return Status(StatusCode::kInvalidArgument, text.str());
}

}  // namespace tidegate::offload
