// What ProcessGroupTidegate does for a group as a whole: coalescing, splitting, the monitored
// barrier.

#include "backend/process_group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "backend/validate.h"
#include "common/log.h"

namespace tidegate {
namespace {

Status CheckRanksOfSplit(const std::vector<int>& ranks, int size, const std::string& name) {
  if (ranks.empty()) return Invalid("the list of ranks is empty");
  if (name.empty()) return Invalid("the options name no group (group_name)");
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= size) {
    return Invalid("the ranks ", ranks, " are not all ranks of this group, which are 0 to ",
                   size - 1);
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return Invalid("the ranks ", ranks, " name one twice");
  }
  return Status();
}

}  // namespace

bool ProcessGroupTidegate::InUse() const {
  return !closed_ && communicator_->health().ok() && !communicator_->HasPeerLeft();
}

void ProcessGroupTidegate::CloseAbandonedWindow() {
  if (!windows_.CloseAbandoned()) return;
  Log(LogLevel::kWarn,
      "an exception left the coalescing manager of group " + communicator_->group_name() +
          ": calls from here on are no longer part of it, and what was issued in it goes on by "
          "itself; torch itself swallows later all_reduce, all_gather_single and "
          "reduce_scatter_single calls of the group now, so make a new one");
}

void ProcessGroupTidegate::startCoalescing() {
  CloseAbandonedWindow();
  if (windows_.Open() && LogEnabled(LogLevel::kWarn)) {
    Log(LogLevel::kWarn, "startCoalescing in group " + communicator_->group_name() +
                             ": the one before had no endCoalescing on this thread; its operations "
                             "go on by themselves");
  }
}

auto ProcessGroupTidegate::endCoalescing() -> WorkPtr {
  CoalescingWindows::Works works;
  if (!windows_.Close(&works)) {
    ThrowStatus(Explain("endCoalescing", Invalid("no startCoalescing on this thread")));
  }
  return c10::make_intrusive<CoalescedWork>(communicator_, std::move(works), timeout_);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupTidegate::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const GilRelease released;
  const std::string name = opts ? opts->group_name : "";
  if (Status checked = CheckRanksOfSplit(ranks, size_, name); !checked.ok()) {
    ThrowStatus(Explain("split", checked));
  }
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;

  const std::lock_guard lock(splits_mutex_);
  const c10::weak_intrusive_ptr<c10d::Backend> none{c10::intrusive_ptr<c10d::Backend>()};
  auto& known = splits_.try_emplace({name, ranks}, none).first->second;
  c10::intrusive_ptr<c10d::Backend> made = known.lock();
  if (made && static_cast<const ProcessGroupTidegate&>(*made).InUse()) return made;
  std::vector<std::int64_t> global_ranks;
  for (const int rank : ranks) {
    const auto& of_this = options_->global_ranks_in_group;
    global_ranks.push_back(of_this.empty() ? rank : static_cast<std::int64_t>(of_this[rank]));
  }
  // Of another type if the caller made them of c10d's own.
  const auto* given = dynamic_cast<const Options*>(opts.get());
  const auto own_options =
      given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>(opts->timeout);
  auto group = Create(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                      opts->timeout, name, std::move(global_ranks), own_options);
  known = c10::weak_intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Backend>(group));
  return group;
}

void ProcessGroupTidegate::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const GilRelease released;
  const Nanoseconds timeout =
      opts.timeout.count() < 0 ? TimeoutOf(c10d::kUnsetTimeout) : ToNanoseconds(opts.timeout);
  const Status passed =
      monitored_barrier_.Pass(timeout, wait_all_ranks, [this] { return communicator_->health(); });
  ThrowPendingSignal();
  if (!passed.ok()) {
    ThrowStatus(
        Status(passed.code(), passed.message() + " [group " + communicator_->group_name() + "]"));
  }
}

}  // namespace tidegate
