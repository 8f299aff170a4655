// Sends and receives of a CommunicatorImpl.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/communicator_impl.h"
#include "collectives/process_runtime.h"
#include "common/recycled.h"

namespace tidegate {

std::shared_ptr<Operation> CommunicatorImpl::Send(Block data, DataType dtype, int peer,
                                                  std::int64_t tag, SubmitOptions options) {
  return Transfer("send", data, dtype, peer, tag, options);
}

std::shared_ptr<Operation> CommunicatorImpl::Receive(Block data, DataType dtype, int peer,
                                                     std::int64_t tag, SubmitOptions options) {
  return Transfer("recv", data, dtype, peer, tag, options);
}

std::shared_ptr<Operation> CommunicatorImpl::Transfer(const char* name, Block data, DataType dtype,
                                                      int peer, std::int64_t tag,
                                                      const SubmitOptions& options) {
  const bool sends = std::string_view(name) == "send";
  const bool any_source = !sends && peer == kAnySource && ranks() > 1;
  if (!any_source && (peer < 0 || peer >= ranks() || peer == rank())) {
    if (Status usable = Usable(); !usable.ok())
      return FailedOperation(name, transfer_sequence_ + 1, usable);
    return FailedOperation(
        name, transfer_sequence_ + 1,
        Status(StatusCode::kInvalidArgument, "peer " + std::to_string(peer) +
                                                 " is not another rank of a group of " +
                                                 std::to_string(ranks())));
  }
  tidegate::Transfer transfer;
  transfer.begun = SteadyClock().Now();
  transfer.deadline = DeadlineAfter(transfer.begun, TimeoutFor(options));
  transfer.data = data;
  transfer.dtype = dtype;
  transfer.peer = peer;
  transfer.tag = tag;
  std::shared_ptr<Operation> operation;
  {
    std::shared_ptr<Attached> group;
    std::unique_lock<std::mutex> lock;
    if (Status entered = Enter([&transfer] { return transfer.deadline; }, &lock, &group);
        !entered.ok())
      return FailedOperation(name, transfer_sequence_ + 1, entered);
    operation = MakeRecycled<Operation>(name, ++transfer_sequence_);
    operation->Hold(options.keepalive, weak_from_this());
    transfer.operation = operation;
    std::erase_if(transfers_, [](const auto& earlier) { return earlier->done(); });
    transfers_.push_back(operation);
    if (sends) {
      group->point_to_point.PostSend(std::move(transfer));
    } else {
      group->point_to_point.PostReceive(std::move(transfer));
    }
  }
  ProcessRuntime::Get().engine()->Notify(shared_from_this());
  if (!options.async) static_cast<void>(operation->Wait(Nanoseconds(0)));
  return operation;
}

}  // namespace tidegate
