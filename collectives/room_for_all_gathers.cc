// How a communicator's all-gathers pass the gate that counts them.

#include "collectives/communicator_impl.h"
#include "collectives/interrupt.h"
#include "common/fork_generation.h"

namespace tidegate {
namespace {

/// What is in flight may wait for peers that wait for what a held thread would call next, if ranks
/// use groups in different orders: then each call beyond the budget takes this long. Longer than a
/// rank is late in nearly all steps of a training, since passing costs memory.
constexpr Nanoseconds kPatience = std::chrono::seconds(1);

}  // namespace

/// Takes no lock while it waits: what is ahead of it must get on.
void CommunicatorImpl::WaitForRoom(Task* task, const SubmitOptions& options) {
  if (!options.async || !options.may_hold || admission_->current().overflow() != Overflow::kBlock)
    return;
  // The gate's lock may have been held by another thread when the process was forked.
  if (generation_ != ForkGeneration()) return;
  task->ticket = admission_->Come(OutputBytes(task->requests), /*urgent=*/false);
  if (task->ticket == nullptr || task->ticket->admitted()) return;
  if (options.hold_observer != nullptr) options.hold_observer->BeginHold();
  task->ticket->WaitForRoom(SteadyClock(), task->deadline, kPatience, [&] {
    if (!health().ok()) return true;
    if (!Interrupted()) return false;
    Abort("interrupted by a signal while an all_gather waited for room");
    return true;
  });
  if (options.hold_observer != nullptr) options.hold_observer->EndHold();
}

}  // namespace tidegate
