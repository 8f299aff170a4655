#include "backend/profiling.h"

#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

namespace tidegate {
namespace {

// torch's own macros for this differ from version to version and build all arguments even while
// nobody listens. What differs is asked of the class itself: whether it takes the async flag, and
// whether it takes the sequence number.
template <typename Info, typename... Arguments>
std::shared_ptr<Info> MakeInfo(std::int64_t sequence, bool is_transfer, bool async,
                               Arguments&&... arguments) {
  std::shared_ptr<Info> info;
  if constexpr (std::is_constructible_v<Info, Arguments..., bool>) {
    info = std::make_shared<Info>(std::forward<Arguments>(arguments)..., async);
  } else {
    info = std::make_shared<Info>(std::forward<Arguments>(arguments)...);
  }
  if constexpr (requires { info->setSequenceInfo(sequence, is_transfer); }) {
    info->setSequenceInfo(sequence, is_transfer);
  }
  return info;
}

}  // namespace

CommsGroup::CommsGroup(std::string group_name, std::string group_description, int group_ranks,
                       const std::vector<std::uint64_t>& global_ranks)
    : name(std::move(group_name)), description(std::move(group_description)), ranks(group_ranks) {
  if (global_ranks.empty()) return;
  global_rank_start = static_cast<int>(global_ranks[0]);
  if (global_ranks.size() == 1) return;
  global_rank_stride = static_cast<int>(global_ranks[1]) - global_rank_start;
  for (std::size_t i = 2; i < global_ranks.size(); ++i) {
    if (static_cast<int>(global_ranks[i]) - static_cast<int>(global_ranks[i - 1]) !=
        global_rank_stride) {
      global_rank_start = -1;
      global_rank_stride = -1;
      return;
    }
  }
}

CommsRecord::CommsRecord() {
  if (std::optional<at::StepCallbacks> listeners =
          at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    function_.emplace(std::move(*listeners));
    profiler_ = c10::ThreadLocalDebugInfo::current();
  }
}

void CommsRecord::Begin(const char* collective, const CommsGroup& group, int own_rank,
                        std::int64_t sequence, bool is_transfer, bool async,
                        const CommsArguments& arguments) {
  const auto names = std::make_tuple(group.name, group.description);
  const int rank = arguments.rank >= 0 ? arguments.rank : own_rank;
  // A transfer is the business of two ranks, not of the group.
  const int start = is_transfer ? -1 : group.global_rank_start;
  const int stride = is_transfer ? -1 : group.global_rank_stride;
  const auto info = MakeInfo<torch::ParamCommsDebugInfo>(
      sequence, is_transfer, async, names, rank, std::string(collective), arguments.input_numel,
      arguments.output_numel, arguments.dtype, arguments.input_splits, arguments.output_splits,
      start, stride, group.ranks);
  info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, info);
  parameters_ = {arguments.inputs,
                 std::make_tuple(sequence, is_transfer),
                 names,
                 rank,
                 collective,
                 arguments.input_splits,
                 arguments.output_splits,
                 start,
                 stride,
                 group.ranks,
                 async};
  function_->before(std::string_view(at::kParamCommsCallName),
                    c10::ArrayRef<const c10::IValue>(parameters_.data(), parameters_.size()));
  if (function_->needsOutputs()) function_->setOutputs(std::vector<c10::IValue>{arguments.outputs});
}

void CommsRecord::BeginWait(const std::string& group_name, int own_rank, std::int64_t sequence,
                            bool is_transfer) {
  CommsGroup nobody(group_name, "", 1, {});
  nobody.global_rank_start = -1;
  nobody.global_rank_stride = -1;
  const std::vector<at::Tensor> none;
  Begin("wait", nobody, own_rank, sequence, is_transfer, /*async=*/false,
        CommsArguments(none, none));
}

std::shared_ptr<WorkRecord> WorkRecord::Begin(const char* title, const CommsRecord& record,
                                              const std::vector<at::Tensor>& inputs) {
  if (!at::hasCallbacks()) return nullptr;  // Cheaper than to ask which would listen.
  std::optional<at::StepCallbacks> listeners =
      at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!listeners) return nullptr;
  std::shared_ptr<WorkRecord> work(
      new WorkRecord(std::move(*listeners),
                     record.active() ? record.profiler() : c10::ThreadLocalDebugInfo::current()));
  const std::vector<c10::IValue> shown(inputs.begin(), inputs.end());
  work->function_._setAsync();
  work->function_.before(title, c10::ArrayRef<const c10::IValue>(shown.data(), shown.size()));
  return work;
}

WorkRecord::WorkRecord(at::StepCallbacks listeners,
                       std::weak_ptr<c10::ThreadLocalDebugInfo> profiler)
    : function_(std::move(listeners)), profiler_(std::move(profiler)) {}

void WorkRecord::End() {
  std::call_once(ended_, [this] {
    // The profiler's listener looks for the profiler of its thread, which may by now be another
    // one, or this thread another. Without one it does nothing.
    std::shared_ptr<c10::ThreadLocalDebugInfo> own = c10::ThreadLocalDebugInfo::current();
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(profiler_.lock());
    function_.end();
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(own));
  });
}

void HoldRecord::BeginHold() {
  if (std::optional<at::StepCallbacks> listeners =
          at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    function_.emplace(std::move(*listeners));
    function_->before(std::string_view("tidegate:wait_for_room"));
  }
}

}  // namespace tidegate
