#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "collectives/communicator.h"

namespace tidegate {

/// The group of a call, in the words of torch's trace tools.
struct CommsGroup {
  /// `global_ranks` is empty for all ranks of the job.
  CommsGroup(std::string group_name, std::string group_description, int group_ranks,
             const std::vector<std::uint64_t>& global_ranks);

  std::string name;
  std::string description;
  int ranks;
  /// The global ranks as start, start + stride, ...; both -1 if they are no such sequence.
  int global_rank_start = 0;
  int global_rank_stride = 1;
};

/// The arguments of a call, in the same words. `TensorList` is a list of tensors or of such lists.
struct CommsArguments {
  template <typename Inputs, typename Outputs>
  CommsArguments(const Inputs& in, const Outputs& out) : inputs(in), outputs(out) {
    Flatten(in, &flat_inputs, &input_numel);
    std::vector<at::Tensor> flat_outputs;
    Flatten(out, &flat_outputs, &output_numel);
    if (!flat_inputs.empty()) {
      dtype = flat_inputs.front().scalar_type();
    } else if (!flat_outputs.empty()) {
      dtype = flat_outputs.front().scalar_type();
    }
  }

  c10::IValue inputs;
  c10::IValue outputs;
  std::vector<at::Tensor> flat_inputs;
  std::int64_t input_numel = 0;
  std::int64_t output_numel = 0;
  at::ScalarType dtype = at::kByte;
  std::vector<std::int64_t> input_splits = {};
  std::vector<std::int64_t> output_splits = {};
  int rank = -1;  ///< The root or the peer where the call has one; -1: the caller.

 private:
  static void Flatten(const std::vector<at::Tensor>& tensors, std::vector<at::Tensor>* flat,
                      std::int64_t* numel) {
    for (const at::Tensor& tensor : tensors) {
      flat->push_back(tensor);
      *numel += tensor.numel();
    }
  }
  static void Flatten(const std::vector<std::vector<at::Tensor>>& lists,
                      std::vector<at::Tensor>* flat, std::int64_t* numel) {
    for (const std::vector<at::Tensor>& list : lists) Flatten(list, flat, numel);
  }
};

/// The event "record_param_comms" around one call, from Begin to the end of its life. Costs the
/// look at one thread-local variable while no profiler runs. One thread.
class CommsRecord {
 public:
  CommsRecord();
  CommsRecord(const CommsRecord&) = delete;
  CommsRecord& operator=(const CommsRecord&) = delete;

  /// Somebody listens. Nothing but this is worth asking when not.
  bool active() const { return function_.has_value(); }
  /// The calling thread's profiler; empty unless active().
  const std::weak_ptr<c10::ThreadLocalDebugInfo>& profiler() const { return profiler_; }

  /// `collective` is the name that ProcessGroupNCCL gives the call: the tools know no other.
  /// REQUIRES: active(), and called once.
  void Begin(const char* collective, const CommsGroup& group, int own_rank, std::int64_t sequence,
             bool is_transfer, bool async, const CommsArguments& arguments);
  /// The event of a wait for an asynchronous call.
  void BeginWait(const std::string& group_name, int own_rank, std::int64_t sequence,
                 bool is_transfer);

 private:
  std::weak_ptr<c10::ThreadLocalDebugInfo> profiler_;
  // In this order: the listeners look at the one and the other when the function ends.
  std::optional<c10::DebugInfoGuard> info_;
  std::vector<c10::IValue> parameters_;
  std::optional<at::RecordFunction> function_;
};

/// The event of a Work, from its construction to End. It has to end before anybody learns that the
/// work is done: who does may stop the profiler, which frees what the end writes to. Thread-safe.
class WorkRecord {
 public:
  /// Null while nobody listens. `record` is that of the call; `inputs` are the tensors whose shapes
  /// are shown.
  static std::shared_ptr<WorkRecord> Begin(const char* title, const CommsRecord& record,
                                           const std::vector<at::Tensor>& inputs);
  WorkRecord(const WorkRecord&) = delete;
  WorkRecord& operator=(const WorkRecord&) = delete;
  ~WorkRecord() { End(); }

  /// Ends the event; when another thread is doing so, waits for it. Says nothing to a profiler that
  /// has stopped since.
  void End();

 private:
  WorkRecord(at::StepCallbacks listeners, std::weak_ptr<c10::ThreadLocalDebugInfo> profiler);

  at::RecordFunction function_;
  // Weak: a reference would keep the state of a profiler alive, but not what its events write to.
  const std::weak_ptr<c10::ThreadLocalDebugInfo> profiler_;
  std::once_flag ended_;
};

/// The event "tidegate:wait_for_room" around the time that a call waits before it begins. Costs
/// nothing unless it waits. One thread.
class HoldRecord final : public HoldObserver {
 public:
  void BeginHold() override;
  void EndHold() override { function_.reset(); }

 private:
  std::optional<at::RecordFunction> function_;
};

}  // namespace tidegate
