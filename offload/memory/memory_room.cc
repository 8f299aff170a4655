#include "offload/memory/memory_room.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/machine/machine.h"
#include "common/units.h"

namespace tidegate::offload {
namespace {

/// Little enough that all ranks of a node together may take it unseen, and at most this part of
/// what there is.
constexpr std::size_t kMostCredit = std::size_t{16} << 20;
constexpr std::uint64_t kCreditPart = 256;

Status Short(std::size_t bytes, std::uint64_t available) {
  const std::optional<std::uint64_t> limit = MemoryLimit();
  const std::string of_limit =
      limit ? " (its memory limit is " + FormatBytes(*limit) + ")" : std::string();
  return Status(StatusCode::kResourceExhausted,
                "cannot take " + FormatBytes(bytes) + " (" + std::to_string(bytes) +
                    " bytes) of memory for the arena: " + FormatBytes(available) +
                    " are available to this process" + of_limit + ", " +
                    FormatBytes(bytes - available) +
                    " short; free memory, or raise the memory limit of this container or job");
}

}  // namespace

MemoryRoom::MemoryRoom(Available available)
    : available_(available ? std::move(available) : [] { return AvailableMemory(); }) {}

Status MemoryRoom::Take(std::size_t bytes) {
  if (bytes <= credit_) {
    credit_ -= bytes;
    return Status();
  }
  credit_ = 0;
  const std::uint64_t available = available_();
  if (bytes > available) return Short(bytes, available);
  credit_ = static_cast<std::size_t>(
      std::min<std::uint64_t>(kMostCredit, (available - bytes) / kCreditPart));
  return Status();
}

Status MemoryRoom::Check(std::size_t bytes) const {
  const std::uint64_t available = available_();
  return bytes > available ? Short(bytes, available) : Status();
}

}  // namespace tidegate::offload
