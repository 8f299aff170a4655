#include "backend/null_backend.h"

#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace tidegate {
namespace {

/// Done when it is made.
class DoneWork final : public c10d::Work {
 public:
  explicit DoneWork(std::vector<at::Tensor> results) : results_(std::move(results)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::vector<at::Tensor> result() override { return results_; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  const std::vector<at::Tensor> results_;
};

c10::intrusive_ptr<c10d::Work> Done(std::vector<at::Tensor> results) {
  return c10::make_intrusive<DoneWork>(std::move(results));
}

std::vector<at::Tensor> Together(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> all;
  for (const std::vector<at::Tensor>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

NullBackend::WorkPtr NullBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions&) {
  return Done(tensors);
}

NullBackend::WorkPtr NullBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions&) {
  return Done(tensors);
}

NullBackend::WorkPtr NullBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions&) {
  return Done(tensors);
}

NullBackend::WorkPtr NullBackend::reduce(Tensors& tensors, const c10d::ReduceOptions&) {
  return Done(tensors);
}

NullBackend::WorkPtr NullBackend::allgather(std::vector<Tensors>& outputs, Tensors& /*inputs*/,
                                            const c10d::AllgatherOptions&) {
  return Done(Together(outputs));
}

NullBackend::WorkPtr NullBackend::_allgather_base(at::Tensor& output, at::Tensor& /*input*/,
                                                  const c10d::AllgatherOptions&) {
  return Done({output});
}

NullBackend::WorkPtr NullBackend::allgather_into_tensor_coalesced(Tensors& outputs,
                                                                  Tensors& /*inputs*/,
                                                                  const c10d::AllgatherOptions&) {
  return Done(outputs);
}

NullBackend::WorkPtr NullBackend::gather(std::vector<Tensors>& outputs, Tensors& /*inputs*/,
                                         const c10d::GatherOptions&) {
  return Done(Together(outputs));
}

NullBackend::WorkPtr NullBackend::scatter(Tensors& outputs, std::vector<Tensors>& /*inputs*/,
                                          const c10d::ScatterOptions&) {
  return Done(outputs);
}

NullBackend::WorkPtr NullBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& /*inputs*/,
                                                 const c10d::ReduceScatterOptions&) {
  return Done(outputs);
}

NullBackend::WorkPtr NullBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& /*input*/,
                                                       const c10d::ReduceScatterOptions&) {
  return Done({output});
}

NullBackend::WorkPtr NullBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& /*inputs*/, const c10d::ReduceScatterOptions&) {
  return Done(outputs);
}

NullBackend::WorkPtr NullBackend::alltoall_base(at::Tensor& output, at::Tensor& /*input*/,
                                                std::vector<std::int64_t>& /*output_splits*/,
                                                std::vector<std::int64_t>& /*input_splits*/,
                                                const c10d::AllToAllOptions&) {
  return Done({output});
}

NullBackend::WorkPtr NullBackend::alltoall(Tensors& outputs, Tensors& /*inputs*/,
                                           const c10d::AllToAllOptions&) {
  return Done(outputs);
}

NullBackend::WorkPtr NullBackend::barrier(const c10d::BarrierOptions&) { return Done({}); }

}  // namespace tidegate
