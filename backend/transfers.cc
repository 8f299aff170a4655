// Sends and receives of ProcessGroupTidegate.

#include "backend/process_group.h"

#include <optional>
#include <string>
#include <utility>

#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "backend/keep_alive.h"
#include "backend/validate.h"

namespace tidegate {
namespace {

using c10d::OpType;

constexpr CallKind kSend{"tidegate:send", OpType::SEND, Collective::kBarrier, "send"};
constexpr CallKind kReceive{"tidegate:recv", OpType::RECV, Collective::kBarrier, "recv"};
// Spelled as c10d's tools and tests look for it.
constexpr CallKind kReceiveAnySource{"tidegate:recvAnySource", OpType::RECVANYSOURCE,
                                     Collective::kBarrier, "recvAnySource"};

}  // namespace

auto ProcessGroupTidegate::send(Tensors& tensors, int peer, int tag) -> WorkPtr {
  return Transfer(kSend, tensors, peer, tag);
}

auto ProcessGroupTidegate::recv(Tensors& tensors, int peer, int tag) -> WorkPtr {
  return Transfer(kReceive, tensors, peer, tag);
}

auto ProcessGroupTidegate::recvAnysource(Tensors& tensors, int tag) -> WorkPtr {
  return Transfer(kReceiveAnySource, tensors, kAnySource, tag);
}

auto ProcessGroupTidegate::Transfer(const CallKind& kind, const Tensors& tensors, int peer, int tag)
    -> WorkPtr {
  CloseAbandonedWindow();
  const GilRelease released;
  CommsRecord record;
  const Status status = CheckTransfer(kind, tensors, peer);
  const Result<DataType> dtype = status.ok() ? DataTypeOf(tensors[0]) : status;
  // No call of Refuse: a peer matches by tag and may yet get what it waits for.
  if (!dtype.ok()) {
    windows_.Refuse();
    ThrowStatus(Explain(kind.name(), dtype.status()));
  }
  const at::Tensor& tensor = tensors[0];
  SubmitOptions options;
  options.keepalive = KeepAlive({tensor.storage()});
  const bool sends = kind.op_type == OpType::SEND;
  void* data = sends ? const_cast<void*>(tensor.const_data_ptr()) : tensor.mutable_data_ptr();
  const Block block{static_cast<std::byte*>(data), tensor.nbytes()};
  std::shared_ptr<WorkRecord> work_record =
      WorkRecord::Begin(kind.title, record, record.active() ? tensors : Tensors());
  auto work = c10::make_intrusive<TidegateWork>(
      kind, communicator_,
      TidegateWork::Call{tensors, TimeoutOf(c10d::kUnsetTimeout),
                         /*async=*/true, windows_.Current(), std::move(work_record)});
  work->Start(sends ? communicator_->Send(block, dtype.value(), peer, tag, std::move(options))
                    : communicator_->Receive(block, dtype.value(), peer, tag, std::move(options)));
  if (record.active()) {
    CommsArguments arguments(tensors, tensors);
    arguments.rank = peer;
    record.Begin(kind.trace_name, DescribeGroup(), rank_,
                 static_cast<std::int64_t>(work->getSequencenumber()), /*is_transfer=*/true,
                 /*async=*/true, arguments);
  }
  windows_.Add(work);
  return work;
}

Status ProcessGroupTidegate::CheckTransfer(const CallKind& kind, const Tensors& tensors,
                                           int peer) const {
  TIDEGATE_RETURN_IF_ERROR(CheckLength(tensors.size(), 1, "the list of tensors"));
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(tensors[0], "tensor"));
  if (kind.op_type == OpType::RECVANYSOURCE) {
    if (size_ > 1) return Status();
    return Status(StatusCode::kInvalidArgument, "there is no other rank to receive from");
  }
  TIDEGATE_RETURN_IF_ERROR(CheckRank(peer, size_, "peer"));
  if (peer != rank_) return Status();
  return Status(StatusCode::kInvalidArgument,
                "peer " + std::to_string(peer) + " is this rank itself");
}

}  // namespace tidegate
