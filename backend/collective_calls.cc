// The collectives of ProcessGroupTidegate.

#include "backend/process_group.h"

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "backend/call_builder.h"
#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "backend/keep_alive.h"
#include "backend/profiling.h"
#include "backend/sparse_sum.h"
#include "backend/validate.h"

namespace tidegate {
namespace {

using c10d::OpType;

constexpr CallKind kBroadcast{"tidegate:broadcast", OpType::BROADCAST, Collective::kBroadcast,
                              "broadcast"};
constexpr CallKind kAllReduce{"tidegate:all_reduce", OpType::ALLREDUCE, Collective::kAllReduce,
                              "allreduce"};
// Runs as two all-gathers.
constexpr CallKind kAllReduceSparse{"tidegate:all_reduce_sparse", OpType::_ALLREDUCE_SPARSE,
                                    Collective::kAllGather, "allreduce_sparse"};
constexpr CallKind kAllReduceCoalesced{"tidegate:all_reduce_coalesced", OpType::ALLREDUCE_COALESCED,
                                       Collective::kAllReduce, "allreduce_coalesced"};
constexpr CallKind kReduce{"tidegate:reduce", OpType::REDUCE, Collective::kReduce, "reduce"};
constexpr CallKind kAllGather{"tidegate:all_gather", OpType::ALLGATHER, Collective::kAllGather,
                              "all_gather"};
constexpr CallKind kAllGatherSingle{"tidegate:all_gather_single", OpType::_ALLGATHER_BASE,
                                    Collective::kAllGather, "_allgather_base"};
constexpr CallKind kAllGatherCoalesced{"tidegate:all_gather_coalesced", OpType::ALLGATHER_COALESCED,
                                       Collective::kAllGather, "all_gather_coalesced"};
// The types named like these two came after 2.11.
constexpr CallKind kAllGatherSingleCoalesced{"tidegate:all_gather_single_coalesced",
                                             OpType::COALESCED, Collective::kAllGather,
                                             "allgather_into_tensor_coalesced"};
constexpr CallKind kReduceScatterSingleCoalesced{"tidegate:reduce_scatter_single_coalesced",
                                                 OpType::COALESCED, Collective::kReduceScatter,
                                                 "reduce_scatter_tensor_coalesced"};
constexpr CallKind kGather{"tidegate:gather", OpType::GATHER, Collective::kGather, "gather"};
constexpr CallKind kScatter{"tidegate:scatter", OpType::SCATTER, Collective::kScatter, "scatter"};
constexpr CallKind kReduceScatter{"tidegate:reduce_scatter", OpType::REDUCE_SCATTER,
                                  Collective::kReduceScatter, "reduce_scatter"};
constexpr CallKind kReduceScatterSingle{"tidegate:reduce_scatter_single",
                                        OpType::_REDUCE_SCATTER_BASE, Collective::kReduceScatter,
                                        "_reduce_scatter_base"};
constexpr CallKind kAllToAll{"tidegate:all_to_all", OpType::ALLTOALL, Collective::kAllToAll,
                             "all_to_all"};
constexpr CallKind kAllToAllSingle{"tidegate:all_to_all_single", OpType::ALLTOALL_BASE,
                                   Collective::kAllToAll, "all_to_all"};
constexpr CallKind kBarrier{"tidegate:barrier", OpType::BARRIER, Collective::kBarrier, "barrier"};

/// c10d's lists hold one entry a device, of which a rank has one.
Status CheckOne(std::size_t size, std::string_view what) { return CheckLength(size, 1, what); }

Status CheckCoalesced(std::size_t outputs, std::size_t inputs) {
  TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs, inputs, "the list of outputs"));
  if (inputs > 0) return Status();
  return Status(StatusCode::kInvalidArgument, "the list of tensors is empty");
}

// What is wrong with the arguments belongs to the call that has them, not to a later wait.
bool IsRefusal(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported;
}

/// The arguments of a call with a root.
template <typename Inputs, typename Outputs>
CommsArguments Rooted(const Inputs& inputs, const Outputs& outputs, std::int64_t root) {
  CommsArguments arguments(inputs, outputs);
  arguments.rank = static_cast<int>(root);
  return arguments;
}

/// What the exception says that is being handled.
std::string CurrentExceptionText() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

template <typename OptionsOfCall, typename Add, typename Describe>
auto ProcessGroupTidegate::Launch(const CallKind& kind, const OptionsOfCall& opts, Add&& add,
                                  Describe&& describe) -> WorkPtr {
  CloseAbandonedWindow();
  const GilRelease released;  // A sync call blocks; so may the first one of a group.
  CommsRecord record;
  CallBuilder builder(rank_, size_);
  Status status;
  try {
    status = opts.timeout == c10d::kUnsetTimeout ? Status() : CheckTimeout(opts.timeout);
    if (status.ok()) status = add(builder);
  } catch (...) {  // From torch. Unless peers are told, they wait for the call until they time out.
    const Status reason(StatusCode::kInvalidArgument, CurrentExceptionText());
    windows_.Refuse();
    communicator_->Refuse(kind.collective, Explain(kind.name(), reason).message());
    throw;
  }
  if (!status.ok()) {
    const Status reason = Explain(kind.name(), status);
    windows_.Refuse();
    communicator_->Refuse(kind.collective, reason.message());
    ThrowStatus(reason);
  }
  if (!record.active()) {
    return Submit(kind, builder, opts.asyncOp, opts.timeout,
                  WorkRecord::Begin(kind.title, record, {}));
  }
  CommsArguments arguments = describe();
  const bool variable = kind.op_type == OpType::ALLTOALL_BASE &&
                        !(arguments.input_splits.empty() && arguments.output_splits.empty());
  record.Begin(variable ? "all_to_allv" : kind.trace_name, DescribeGroup(), rank_,
               static_cast<std::int64_t>(communicator_->sequence()) + 1, /*is_transfer=*/false,
               opts.asyncOp, arguments);
  return Submit(kind, builder, opts.asyncOp, opts.timeout,
                WorkRecord::Begin(kind.title, record, arguments.flat_inputs));
}

auto ProcessGroupTidegate::Submit(const CallKind& kind, CallBuilder& builder, bool async,
                                  std::chrono::milliseconds timeout,
                                  std::shared_ptr<WorkRecord> record) -> WorkPtr {
  CallArguments call = builder.Take();
  std::shared_ptr<const CoalescingWindow> window = windows_.Current();
  SubmitOptions options;
  options.async = async || window != nullptr;
  options.may_hold = window == nullptr;
  HoldRecord hold_record;
  options.hold_observer = &hold_record;
  options.timeout = TimeoutOf(timeout);
  options.keepalive = KeepAlive(std::move(call.memory));
  auto work = c10::make_intrusive<TidegateWork>(
      kind, communicator_,
      TidegateWork::Call{std::move(call.results), options.timeout, async, std::move(window),
                         std::move(record)});
  std::shared_ptr<Operation> operation =
      communicator_->Submit(std::move(call.requests), std::move(options));
  work->Start(operation);
  ThrowPendingSignal();  // An async call may have waited, too.
  if (operation->done() && IsRefusal(operation->status())) {
    windows_.Refuse();
    ThrowStatus(operation->status());
  }
  windows_.Add(work);
  return work;
}

auto ProcessGroupTidegate::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts)
    -> WorkPtr {
  return Launch(
      kBroadcast, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
        return call.AddBroadcast(tensors[0], opts.rootRank);
      },
      [&] { return Rooted(tensors, tensors, opts.rootRank); });
}

auto ProcessGroupTidegate::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts)
    -> WorkPtr {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) {
    return allreduce_sparse(tensors, opts);
  }
  return Launch(
      kAllReduce, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
        return call.AddAllReduce(tensors[0], opts.reduceOp);
      },
      [&] { return CommsArguments(tensors, tensors); });
}

// Blocks until all ranks have come, async or not: the second all-gather needs what the first
// brings.
auto ProcessGroupTidegate::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts)
    -> WorkPtr {
  SparseSum sum(size_);
  const auto describe = [&] { return CommsArguments(tensors, tensors); };
  c10d::AllgatherOptions gather;
  gather.asyncOp = false;
  gather.timeout = opts.timeout;
  WorkPtr work = Launch(
      kAllReduceSparse, gather,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
        if (windows_.Current() != nullptr) {
          return Status(StatusCode::kUnsupported,
                        "sparse tensors cannot be reduced between startCoalescing and "
                        "endCoalescing, for that takes two all-gathers of which the second needs "
                        "what the first brings; call it outside of the coalescing manager");
        }
        TIDEGATE_RETURN_IF_ERROR(sum.Begin(tensors[0], opts.reduceOp));
        return call.AddAllGatherSingle(sum.headers(), sum.header());
      },
      describe);
  if (!work->isSuccess()) return work;  // Failed, for a sync call returns when it is done.
  work = Launch(
      kAllReduceSparse, gather,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(sum.Compare());
        TIDEGATE_RETURN_IF_ERROR(call.AddAllGather(sum.all_indices(), sum.indices()));
        TIDEGATE_RETURN_IF_ERROR(call.AddAllGather(sum.all_values(), sum.values()));
        call.SetResults(tensors);
        return Status();
      },
      describe);
  if (!work->isSuccess()) return work;
  if (Status summed = sum.Finish(); !summed.ok()) {
    ThrowStatus(Explain(kAllReduceSparse.name(), summed));
  }
  return work;
}

auto ProcessGroupTidegate::allreduce_coalesced(Tensors& tensors,
                                               const c10d::AllreduceCoalescedOptions& opts)
    -> WorkPtr {
  return Launch(
      kAllReduceCoalesced, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckCoalesced(tensors.size(), tensors.size()));
        for (const at::Tensor& tensor : tensors) {
          TIDEGATE_RETURN_IF_ERROR(call.AddAllReduce(tensor, opts.reduceOp));
        }
        return Status();
      },
      [&] { return CommsArguments(tensors, tensors); });
}

auto ProcessGroupTidegate::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) -> WorkPtr {
  return Launch(
      kReduce, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
        return call.AddReduce(tensors[0], opts.reduceOp, opts.rootRank);
      },
      [&] { return Rooted(tensors, tensors, opts.rootRank); });
}

auto ProcessGroupTidegate::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& opts) -> WorkPtr {
  return Launch(
      kAllGather, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(inputs.size(), "the list of inputs"));
        TIDEGATE_RETURN_IF_ERROR(CheckOne(outputs.size(), "the list of output lists"));
        return call.AddAllGather(outputs[0], inputs[0]);
      },
      [&] { return CommsArguments(inputs, outputs); });
}

auto ProcessGroupTidegate::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& opts) -> WorkPtr {
  return Launch(
      kAllGatherSingle, opts,
      [&](CallBuilder& call) { return call.AddAllGatherSingle(output, input); },
      [&] { return CommsArguments(Tensors{input}, Tensors{output}); });
}

auto ProcessGroupTidegate::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& opts) -> WorkPtr {
  return Launch(
      kAllGatherCoalesced, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs.size(), size_, "the list of output lists"));
        for (const Tensors& list : outputs) {
          TIDEGATE_RETURN_IF_ERROR(CheckCoalesced(list.size(), inputs.size()));
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          Tensors of_all_ranks;
          of_all_ranks.reserve(outputs.size());
          for (const Tensors& list : outputs) of_all_ranks.push_back(list[i]);
          TIDEGATE_RETURN_IF_ERROR(call.AddAllGather(of_all_ranks, inputs[i]));
        }
        return Status();
      },
      [&] { return CommsArguments(inputs, outputs); });
}

auto ProcessGroupTidegate::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& opts)
    -> WorkPtr {
  return Launch(
      kAllGatherSingleCoalesced, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckCoalesced(outputs.size(), inputs.size()));
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          TIDEGATE_RETURN_IF_ERROR(call.AddAllGatherSingle(outputs[i], inputs[i]));
        }
        return Status();
      },
      [&] { return CommsArguments(inputs, outputs); });
}

auto ProcessGroupTidegate::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::GatherOptions& opts) -> WorkPtr {
  return Launch(
      kGather, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(inputs.size(), "the list of inputs"));
        return call.AddGather(outputs, inputs[0], opts.rootRank);
      },
      [&] {
        CommsArguments arguments = Rooted(inputs, outputs, opts.rootRank);
        arguments.output_numel = arguments.input_numel * size_;  // As on the root.
        return arguments;
      });
}

auto ProcessGroupTidegate::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ScatterOptions& opts) -> WorkPtr {
  return Launch(
      kScatter, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(outputs.size(), "the list of outputs"));
        return call.AddScatter(outputs[0], inputs, opts.rootRank);
      },
      [&] {
        CommsArguments arguments = Rooted(inputs, outputs, opts.rootRank);
        arguments.input_numel = arguments.output_numel * size_;  // As on the root.
        return arguments;
      });
}

auto ProcessGroupTidegate::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ReduceScatterOptions& opts) -> WorkPtr {
  return Launch(
      kReduceScatter, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckOne(outputs.size(), "the list of outputs"));
        TIDEGATE_RETURN_IF_ERROR(CheckOne(inputs.size(), "the list of input lists"));
        return call.AddReduceScatter(outputs[0], inputs[0], opts.reduceOp);
      },
      [&] { return CommsArguments(inputs, outputs); });
}

auto ProcessGroupTidegate::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) -> WorkPtr {
  return Launch(
      kReduceScatterSingle, opts,
      [&](CallBuilder& call) { return call.AddReduceScatterSingle(output, input, opts.reduceOp); },
      [&] { return CommsArguments(Tensors{input}, Tensors{output}); });
}

auto ProcessGroupTidegate::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& opts)
    -> WorkPtr {
  return Launch(
      kReduceScatterSingleCoalesced, opts,
      [&](CallBuilder& call) {
        TIDEGATE_RETURN_IF_ERROR(CheckCoalesced(outputs.size(), inputs.size()));
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          TIDEGATE_RETURN_IF_ERROR(
              call.AddReduceScatterSingle(outputs[i], inputs[i], opts.reduceOp));
        }
        return Status();
      },
      [&] { return CommsArguments(inputs, outputs); });
}

auto ProcessGroupTidegate::alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<std::int64_t>& output_splits,
                                         std::vector<std::int64_t>& input_splits,
                                         const c10d::AllToAllOptions& opts) -> WorkPtr {
  return Launch(
      kAllToAllSingle, opts,
      [&](CallBuilder& call) {
        return call.AddAllToAllSingle(output, input, output_splits, input_splits);
      },
      [&] {
        CommsArguments arguments(Tensors{input}, Tensors{output});
        arguments.input_splits = input_splits;
        arguments.output_splits = output_splits;
        return arguments;
      });
}

auto ProcessGroupTidegate::alltoall(Tensors& outputs, Tensors& inputs,
                                    const c10d::AllToAllOptions& opts) -> WorkPtr {
  return Launch(
      kAllToAll, opts, [&](CallBuilder& call) { return call.AddAllToAll(outputs, inputs); },
      [&] { return CommsArguments(inputs, outputs); });
}

auto ProcessGroupTidegate::barrier(const c10d::BarrierOptions& opts) -> WorkPtr {
  return Launch(
      kBarrier, opts, [&](CallBuilder& call) { return call.AddBarrier(); },
      [&] { return CommsArguments(Tensors{}, Tensors{}); });
}

}  // namespace tidegate
