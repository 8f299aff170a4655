// The collectives of ProcessGroupTidegate.

#include "backend/process_group.h"

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "backend/call_builder.h"
#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "backend/keep_alive.h"
#include "backend/sparse_sum.h"
#include "backend/validate.h"

namespace tidegate {
namespace {

using c10d::OpType;

constexpr CallKind kBroadcast{"tidegate:broadcast", OpType::BROADCAST, Collective::kBroadcast};
constexpr CallKind kAllReduce{"tidegate:all_reduce", OpType::ALLREDUCE, Collective::kAllReduce};
// Runs as two all-gathers.
constexpr CallKind kAllReduceSparse{"tidegate:all_reduce_sparse", OpType::_ALLREDUCE_SPARSE,
                                    Collective::kAllGather};
constexpr CallKind kAllReduceCoalesced{"tidegate:all_reduce_coalesced", OpType::ALLREDUCE_COALESCED,
                                       Collective::kAllReduce};
constexpr CallKind kReduce{"tidegate:reduce", OpType::REDUCE, Collective::kReduce};
constexpr CallKind kAllGather{"tidegate:all_gather", OpType::ALLGATHER, Collective::kAllGather};
constexpr CallKind kAllGatherSingle{"tidegate:all_gather_single", OpType::_ALLGATHER_BASE,
                                    Collective::kAllGather};
constexpr CallKind kAllGatherCoalesced{"tidegate:all_gather_coalesced", OpType::ALLGATHER_COALESCED,
                                       Collective::kAllGather};
// The types named like these two came after 2.11.
constexpr CallKind kAllGatherSingleCoalesced{"tidegate:all_gather_single_coalesced",
                                             OpType::COALESCED, Collective::kAllGather};
constexpr CallKind kReduceScatterSingleCoalesced{"tidegate:reduce_scatter_single_coalesced",
                                                 OpType::COALESCED, Collective::kReduceScatter};
constexpr CallKind kGather{"tidegate:gather", OpType::GATHER, Collective::kGather};
constexpr CallKind kScatter{"tidegate:scatter", OpType::SCATTER, Collective::kScatter};
constexpr CallKind kReduceScatter{"tidegate:reduce_scatter", OpType::REDUCE_SCATTER,
                                  Collective::kReduceScatter};
constexpr CallKind kReduceScatterSingle{"tidegate:reduce_scatter_single",
                                        OpType::_REDUCE_SCATTER_BASE, Collective::kReduceScatter};
constexpr CallKind kAllToAll{"tidegate:all_to_all", OpType::ALLTOALL, Collective::kAllToAll};
constexpr CallKind kAllToAllSingle{"tidegate:all_to_all_single", OpType::ALLTOALL_BASE,
                                   Collective::kAllToAll};
constexpr CallKind kBarrier{"tidegate:barrier", OpType::BARRIER, Collective::kBarrier};

/// c10d's lists hold one entry a device, of which a rank has one.
Status CheckOne(std::size_t size, std::string_view what) { return CheckLength(size, 1, what); }

Status CheckCoalesced(std::size_t outputs, std::size_t inputs) {
  TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs, inputs, "the list of outputs"));
  if (inputs > 0) return Status();
  return Status(StatusCode::kInvalidArgument, "the list of tensors is empty");
}

// What is wrong with the arguments belongs to the call that has them, not to a later wait.
void ThrowIfRefused(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported) {
    ThrowStatus(status);
  }
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

template <typename OptionsOfCall, typename Add>
auto ProcessGroupTidegate::Launch(const CallKind& kind, const OptionsOfCall& opts, Add&& add)
    -> WorkPtr {
  const GilRelease released;  // A sync call blocks; so may the first one of a group.
  CallBuilder builder(rank_, size_);
  Status status;
  try {
    status = add(builder);
  } catch (...) {  // From torch. Unless peers are told, they wait for the call until they time out.
    const Status reason(StatusCode::kInvalidArgument, CurrentExceptionText());
    communicator_->Refuse(kind.collective, Explain(kind, reason).message());
    throw;
  }
  if (!status.ok()) {
    const Status reason = Explain(kind, status);
    communicator_->Refuse(kind.collective, reason.message());
    ThrowStatus(reason);
  }
  return Submit(kind, builder, opts.asyncOp, opts.timeout);
}

auto ProcessGroupTidegate::Submit(const CallKind& kind, CallBuilder& builder, bool async,
                                  std::chrono::milliseconds timeout) -> WorkPtr {
  CallArguments call = builder.Take();
  SubmitOptions options;
  options.async = async;
  options.timeout = ToNanoseconds(timeout);
  options.keepalive = KeepAlive(std::move(call.memory));
  auto work = c10::make_intrusive<TidegateWork>(kind, communicator_, std::move(call.results));
  std::shared_ptr<Operation> operation =
      communicator_->Submit(std::move(call.requests), std::move(options));
  work->Start(operation);
  if (!async) ThrowPendingSignal();
  if (operation->done()) ThrowIfRefused(operation->status());
  return work;
}

auto ProcessGroupTidegate::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts)
    -> WorkPtr {
  return Launch(kBroadcast, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
    return call.AddBroadcast(tensors[0], opts.rootRank);
  });
}

auto ProcessGroupTidegate::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts)
    -> WorkPtr {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) {
    return allreduce_sparse(tensors, opts);
  }
  return Launch(kAllReduce, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
    return call.AddAllReduce(tensors[0], opts.reduceOp);
  });
}

// Blocks until all ranks have come, async or not: the second all-gather needs what the first
// brings.
auto ProcessGroupTidegate::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts)
    -> WorkPtr {
  SparseSum sum(size_);
  c10d::AllgatherOptions gather;
  gather.asyncOp = false;
  gather.timeout = opts.timeout;
  WorkPtr work = Launch(kAllReduceSparse, gather, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
    TIDEGATE_RETURN_IF_ERROR(sum.Begin(tensors[0], opts.reduceOp));
    return call.AddAllGatherSingle(sum.headers(), sum.header());
  });
  if (!work->isSuccess()) return work;
  work = Launch(kAllReduceSparse, gather, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(sum.Compare());
    TIDEGATE_RETURN_IF_ERROR(call.AddAllGather(sum.all_indices(), sum.indices()));
    TIDEGATE_RETURN_IF_ERROR(call.AddAllGather(sum.all_values(), sum.values()));
    call.SetResults(tensors);
    return Status();
  });
  if (work->isSuccess()) sum.Finish();
  return work;
}

auto ProcessGroupTidegate::allreduce_coalesced(Tensors& tensors,
                                               const c10d::AllreduceCoalescedOptions& opts)
    -> WorkPtr {
  return Launch(kAllReduceCoalesced, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckCoalesced(tensors.size(), tensors.size()));
    for (const at::Tensor& tensor : tensors) {
      TIDEGATE_RETURN_IF_ERROR(call.AddAllReduce(tensor, opts.reduceOp));
    }
    return Status();
  });
}

auto ProcessGroupTidegate::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) -> WorkPtr {
  return Launch(kReduce, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
    return call.AddReduce(tensors[0], opts.reduceOp, opts.rootRank);
  });
}

auto ProcessGroupTidegate::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& opts) -> WorkPtr {
  return Launch(kAllGather, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(inputs.size(), "the list of inputs"));
    TIDEGATE_RETURN_IF_ERROR(CheckOne(outputs.size(), "the list of output lists"));
    return call.AddAllGather(outputs[0], inputs[0]);
  });
}

auto ProcessGroupTidegate::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& opts) -> WorkPtr {
  return Launch(kAllGatherSingle, opts,
                [&](CallBuilder& call) { return call.AddAllGatherSingle(output, input); });
}

auto ProcessGroupTidegate::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& opts) -> WorkPtr {
  return Launch(kAllGatherCoalesced, opts, [&](CallBuilder& call) {
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
  });
}

auto ProcessGroupTidegate::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& opts)
    -> WorkPtr {
  return Launch(kAllGatherSingleCoalesced, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckCoalesced(outputs.size(), inputs.size()));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      TIDEGATE_RETURN_IF_ERROR(call.AddAllGatherSingle(outputs[i], inputs[i]));
    }
    return Status();
  });
}

auto ProcessGroupTidegate::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::GatherOptions& opts) -> WorkPtr {
  return Launch(kGather, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(inputs.size(), "the list of inputs"));
    return call.AddGather(outputs, inputs[0], opts.rootRank);
  });
}

auto ProcessGroupTidegate::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ScatterOptions& opts) -> WorkPtr {
  return Launch(kScatter, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(outputs.size(), "the list of outputs"));
    return call.AddScatter(outputs[0], inputs, opts.rootRank);
  });
}

auto ProcessGroupTidegate::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ReduceScatterOptions& opts) -> WorkPtr {
  return Launch(kReduceScatter, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(outputs.size(), "the list of outputs"));
    TIDEGATE_RETURN_IF_ERROR(CheckOne(inputs.size(), "the list of input lists"));
    return call.AddReduceScatter(outputs[0], inputs[0], opts.reduceOp);
  });
}

auto ProcessGroupTidegate::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) -> WorkPtr {
  return Launch(kReduceScatterSingle, opts, [&](CallBuilder& call) {
    return call.AddReduceScatterSingle(output, input, opts.reduceOp);
  });
}

auto ProcessGroupTidegate::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& opts)
    -> WorkPtr {
  return Launch(kReduceScatterSingleCoalesced, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckCoalesced(outputs.size(), inputs.size()));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      TIDEGATE_RETURN_IF_ERROR(call.AddReduceScatterSingle(outputs[i], inputs[i], opts.reduceOp));
    }
    return Status();
  });
}

auto ProcessGroupTidegate::alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<std::int64_t>& output_splits,
                                         std::vector<std::int64_t>& input_splits,
                                         const c10d::AllToAllOptions& opts) -> WorkPtr {
  return Launch(kAllToAllSingle, opts, [&](CallBuilder& call) {
    return call.AddAllToAllSingle(output, input, output_splits, input_splits);
  });
}

auto ProcessGroupTidegate::alltoall(Tensors& outputs, Tensors& inputs,
                                    const c10d::AllToAllOptions& opts) -> WorkPtr {
  return Launch(kAllToAll, opts,
                [&](CallBuilder& call) { return call.AddAllToAll(outputs, inputs); });
}

auto ProcessGroupTidegate::barrier(const c10d::BarrierOptions& opts) -> WorkPtr {
  return Launch(kBarrier, opts, [&](CallBuilder& call) { return call.AddBarrier(); });
}

}  // namespace tidegate
