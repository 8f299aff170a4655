#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "backend/keep_alive.h"
#include "collectives/requests.h"
#include "common/status.h"

namespace tidegate {

/// One call of a user in the terms of the core.
struct CallArguments {
  Requests requests;
  Memory memory;                    ///< What the requests point into.
  std::vector<at::Tensor> results;  ///< Of Work::result() and the future.
};

/// Turns the arguments of c10d's collectives into requests, validating them on the way: each Add
/// appends one request or says what is wrong with its arguments. Used once, by one thread.
class CallBuilder {
 public:
  using Tensors = std::vector<at::Tensor>;

  CallBuilder(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  Status AddAllGather(const Tensors& outputs, const at::Tensor& input);
  Status AddAllGatherSingle(const at::Tensor& output, const at::Tensor& input);
  Status AddReduceScatter(const at::Tensor& output, const Tensors& inputs,
                          const c10d::ReduceOp& op);
  Status AddReduceScatterSingle(const at::Tensor& output, const at::Tensor& input,
                                const c10d::ReduceOp& op);
  Status AddAllReduce(const at::Tensor& tensor, const c10d::ReduceOp& op);
  Status AddBroadcast(const at::Tensor& tensor, std::int64_t root);
  Status AddReduce(const at::Tensor& tensor, const c10d::ReduceOp& op, std::int64_t root);
  /// `outputs` is empty on all ranks but the root, and so is `inputs` of AddScatter.
  Status AddGather(const std::vector<Tensors>& outputs, const at::Tensor& input, std::int64_t root);
  Status AddScatter(const at::Tensor& output, const std::vector<Tensors>& inputs,
                    std::int64_t root);
  Status AddAllToAll(const Tensors& outputs, const Tensors& inputs);
  Status AddAllToAllSingle(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::int64_t>& output_splits,
                           const std::vector<std::int64_t>& input_splits);
  Status AddBarrier();

  /// For a call whose results are not the tensors that its requests write.
  void SetResults(Tensors results) { call_.results = std::move(results); }

  CallArguments Take() { return std::move(call_); }

 private:
  /// Starts a request for tensors like `first`, which has been checked.
  Status Begin(Collective collective, const at::Tensor& first, CollectiveRequest& request) const;
  Block Read(const at::Tensor& tensor);
  Blocks ReadAll(const Tensors& tensors);
  Block Write(const at::Tensor& tensor);
  Blocks WriteAll(const Tensors& tensors);
  Blocks EqualParts(Block whole) const;
  Status Append(CollectiveRequest request);

  const int rank_;
  const int ranks_;
  CallArguments call_;
  // Of the request that is being built.
  bool inputs_from_malloc_ = true;
  bool inputs_of_one_storage_ = true;
  const c10::StorageImpl* input_storage_ = nullptr;
};

}  // namespace tidegate
