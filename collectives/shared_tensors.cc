// Memory for tensors that a group's collectives read where they lie.

#include <string>

#include "collectives/communicator_impl.h"
#include "common/log.h"
#include "common/units.h"

namespace tidegate {

Result<std::shared_ptr<std::byte>> CommunicatorImpl::Allocate(std::size_t bytes) {
  TIDEGATE_RETURN_IF_ERROR(Usable());
  if (ranks() == 1) return std::shared_ptr<std::byte>();
  const Result<std::shared_ptr<Attached>> joined =
      EnsureAttached(DeadlineAfter(SteadyClock().Now(), TimeoutFor({})));
  TIDEGATE_RETURN_IF_ERROR(joined.status());
  Result<std::shared_ptr<std::byte>> memory = joined.value()->context.transport().Allocate(bytes);
  if (memory.ok() || memory.status().code() != StatusCode::kResourceExhausted) return memory;
  if (!warned_of_full_heap_.exchange(true))
    Log(LogLevel::kWarn,
        "group " + options_.group_name + ": a tensor of " + FormatBytes(bytes) +
            " goes to ordinary memory, from which collectives take an extra copy, and so may later "
            "ones: " +
            memory.status().message() +
            "; let go of tensors that tidegate.empty or allocate_tensor made, or raise "
            "TIDEGATE_HEAP_BYTES");
  return std::shared_ptr<std::byte>();
}

}  // namespace tidegate
