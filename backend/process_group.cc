#include "backend/process_group.h"

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "backend/call_builder.h"
#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "backend/store_bootstrap.h"
#include "backend/validate.h"
#include "common/config.h"
#include "common/log.h"
#include "common/units.h"

namespace tidegate {
namespace {

using c10d::OpType;

constexpr CallKind kBroadcast{"tidegate:broadcast", OpType::BROADCAST, Collective::kBroadcast};
constexpr CallKind kAllReduce{"tidegate:all_reduce", OpType::ALLREDUCE, Collective::kAllReduce};
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
constexpr CallKind kSend{"tidegate:send", OpType::SEND, Collective::kBarrier};
constexpr CallKind kReceive{"tidegate:recv", OpType::RECV, Collective::kBarrier};

/// c10d's lists hold one entry a device, of which a rank has one.
Status CheckOne(std::size_t size, std::string_view what) { return CheckLength(size, 1, what); }

Status CheckCoalesced(std::size_t outputs, std::size_t inputs) {
  TIDEGATE_RETURN_IF_ERROR(CheckLength(outputs, inputs, "the list of outputs"));
  if (inputs > 0) return Status();
  return Status(StatusCode::kInvalidArgument, "the list of tensors is empty");
}

std::shared_ptr<void> KeepAlive(std::vector<c10::Storage> memory) {
  return std::make_shared<std::vector<c10::Storage>>(std::move(memory));
}

// What is wrong with the arguments belongs to the call that has them, not to a later wait.
void ThrowIfRefused(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported) {
    ThrowStatus(status);
  }
}

int GlobalRank(const CommunicatorOptions& options) {
  const bool in_range =
      options.rank >= 0 && static_cast<std::size_t>(options.rank) < options.global_ranks.size();
  return in_range ? static_cast<int>(options.global_ranks[options.rank]) : options.rank;
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

/// The line a group at level INFO.
std::string Describe(const CommunicatorOptions& options) {
  const std::string members = options.global_ranks.empty() ? c10::str("0 to ", options.ranks - 1)
                                                           : c10::str(options.global_ranks);
  return c10::str("group ", options.group_name, ": rank ", options.rank, " of ", options.ranks,
                  ", global ranks ", members, ", transport shm, stage ",
                  FormatBytes(options.config.stage_bytes), " a rank and lane, 2 lanes, timeout ",
                  std::chrono::duration<double>(options.timeout).count(), " s");
}

}  // namespace

ProcessGroupTidegate::Options::Options(std::chrono::milliseconds timeout)
    : c10d::Backend::Options("tidegate", timeout) {}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTidegate::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}

auto ProcessGroupTidegate::Create(c10::intrusive_ptr<c10d::Store> store, int rank, int ranks,
                                  std::chrono::milliseconds timeout, const std::string& group_name,
                                  std::vector<std::int64_t> global_ranks,
                                  const c10::intrusive_ptr<Options>& options)
    -> c10::intrusive_ptr<ProcessGroupTidegate> {
  Result<Config> config = ProcessConfig();
  if (!config.ok()) ThrowStatus(config.status());
  auto own_options =
      options ? c10::make_intrusive<Options>(*options) : c10::make_intrusive<Options>(timeout);
  own_options->timeout = timeout;
  own_options->group_name = group_name;
  own_options->global_ranks_in_group.assign(global_ranks.begin(), global_ranks.end());

  CommunicatorOptions core;
  core.group_name = group_name;
  core.rank = rank;
  core.ranks = ranks;
  core.global_ranks = std::move(global_ranks);
  core.timeout = ToNanoseconds(timeout);
  core.config = std::move(config).value();
  core.bootstrap = std::make_unique<StoreBootstrap>(std::move(store));
  SetLogRank(GlobalRank(core));
  if (LogEnabled(LogLevel::kInfo)) Log(LogLevel::kInfo, Describe(core));
  auto communicator = Communicator::Create(std::move(core));
  if (!communicator.ok()) ThrowStatus(communicator.status());
  return c10::make_intrusive<ProcessGroupTidegate>(std::move(communicator).value(),
                                                   std::move(own_options));
}

ProcessGroupTidegate::ProcessGroupTidegate(std::shared_ptr<Communicator> communicator,
                                           c10::intrusive_ptr<Options> options)
    : c10d::Backend(communicator->rank(), communicator->ranks()),
      communicator_(std::move(communicator)),
      options_(std::move(options)) {
  init();
}

ProcessGroupTidegate::~ProcessGroupTidegate() {
  const GilRelease released;
  communicator_->Shutdown();
}

const std::string ProcessGroupTidegate::getBackendName() const { return "tidegate"; }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTidegate::getBackendOptions() {
  return options_;
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
  return Launch(kAllReduce, opts, [&](CallBuilder& call) {
    TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
    return call.AddAllReduce(tensors[0], opts.reduceOp);
  });
}

// Sparse tensors are refused with the same words as everywhere.
auto ProcessGroupTidegate::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts)
    -> WorkPtr {
  return allreduce(tensors, opts);
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

auto ProcessGroupTidegate::send(Tensors& tensors, int peer, int tag) -> WorkPtr {
  return Transfer(kSend, tensors, peer, tag);
}

auto ProcessGroupTidegate::recv(Tensors& tensors, int peer, int tag) -> WorkPtr {
  return Transfer(kReceive, tensors, peer, tag);
}

std::uint64_t ProcessGroupTidegate::getSequenceNumberForGroup() {
  return communicator_->sequence();
}

void ProcessGroupTidegate::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  communicator_->set_timeout(ToNanoseconds(timeout));
}

// c10d passes the index alone: cpu has none (-1), cuda one.
bool ProcessGroupTidegate::supportsTensorAlloc(c10::DeviceIndex device) { return device < 0; }

at::Tensor ProcessGroupTidegate::allocateTensor(long numel, at::TensorOptions options) {
  if (!options.device().is_cpu() || numel < 0) {
    C10_THROW_ERROR(ValueError, c10::str("allocate_tensor of group ", communicator_->group_name(),
                                         ": this build allocates cpu tensors of 0 or more elements;"
                                         " got ",
                                         numel, " on ", options.device()));
  }
  return at::empty({numel}, options);
}

c10d::ErrorType ProcessGroupTidegate::getError() {
  switch (communicator_->health().code()) {
    case StatusCode::kOk:
      return c10d::ErrorType::SUCCESS;
    case StatusCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case StatusCode::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupTidegate::abort() {
  const GilRelease released;
  communicator_->Abort("abort() was called on rank " + std::to_string(rank_));
}

void ProcessGroupTidegate::shutdown() {
  const GilRelease released;
  communicator_->Shutdown();
  ThrowPendingSignal();
}

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

auto ProcessGroupTidegate::Transfer(const CallKind& kind, const Tensors& tensors, int peer, int tag)
    -> WorkPtr {
  const GilRelease released;
  const Status status = CheckTransfer(tensors, peer);
  const Result<DataType> dtype = status.ok() ? DataTypeOf(tensors[0]) : status;
  // No call of Refuse: a peer matches by tag and may yet get what it waits for.
  if (!dtype.ok()) ThrowStatus(Explain(kind, dtype.status()));
  const at::Tensor& tensor = tensors[0];
  SubmitOptions options;
  options.keepalive = KeepAlive({tensor.storage()});
  const bool sends = kind.op_type == OpType::SEND;
  void* data = sends ? const_cast<void*>(tensor.const_data_ptr()) : tensor.mutable_data_ptr();
  const Block block{static_cast<std::byte*>(data), tensor.nbytes()};
  auto work = c10::make_intrusive<TidegateWork>(kind, communicator_, tensors);
  work->Start(sends ? communicator_->Send(block, dtype.value(), peer, tag, std::move(options))
                    : communicator_->Receive(block, dtype.value(), peer, tag, std::move(options)));
  return work;
}

Status ProcessGroupTidegate::CheckTransfer(const Tensors& tensors, int peer) const {
  TIDEGATE_RETURN_IF_ERROR(CheckOne(tensors.size(), "the list of tensors"));
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(tensors[0], "tensor"));
  TIDEGATE_RETURN_IF_ERROR(CheckRank(peer, size_, "peer"));
  if (peer != rank_) return Status();
  return Status(StatusCode::kInvalidArgument,
                "peer " + std::to_string(peer) + " is this rank itself");
}

Status ProcessGroupTidegate::Explain(const CallKind& kind, const Status& reason) const {
  return Status(reason.code(), std::string(kind.name()) + " in group " +
                                   communicator_->group_name() + ", rank " + std::to_string(rank_) +
                                   " of " + std::to_string(size_) + ": " + reason.message());
}

}  // namespace tidegate
