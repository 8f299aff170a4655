#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "backend/coalescing.h"
#include "backend/monitored_barrier.h"
#include "backend/profiling.h"
#include "backend/work.h"
#include "collectives/communicator.h"
#include "common/status.h"

namespace tidegate {

class CallBuilder;

/// tidegate as c10d knows it: validates the arguments of each call, hands it to the Communicator
/// and wraps what comes back in a Work. Holds no state of its own beyond options. Thread-safe.
///
/// Only the names that c10d had in 2.11 are overridden: later versions forward the newer names to
/// them, so that one source serves all. What a call does, its shapes and its rules are c10d's own;
/// exceptions are those of error_translation.h. A call that is refused here is an error at once on
/// all ranks that made the call rightly.
class ProcessGroupTidegate final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout);
    /// Of the group's own, for its all-gathers; empty: those of the process hold.
    LimitTexts limits;
    /// Overrides the method that c10d has from 2.14 on; `override` would refuse the older ones.
    c10::intrusive_ptr<c10d::Backend::Options> clone() const;  // NOLINT
  };

  /// One rank's membership of one group. Reads the TIDEGATE_* settings. Waits for no other rank,
  /// but for two answers of `store` (unless the rank is alone), so call it without the GIL; the
  /// rest of the meeting is left to the first operation. `global_ranks` is empty for all ranks of
  /// the job. `options` may be null and is copied; `timeout`, which must be positive, outranks the
  /// one in it. Throws as error_translation.h says.
  static c10::intrusive_ptr<ProcessGroupTidegate> Create(
      c10::intrusive_ptr<c10d::Store> store, int rank, int ranks, std::chrono::milliseconds timeout,
      const std::string& group_name, std::vector<std::int64_t> global_ranks,
      const c10::intrusive_ptr<Options>& options);

  ProcessGroupTidegate(std::shared_ptr<Communicator> communicator,
                       c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<Options> options);
  /// Shuts down, which may block. c10d does not promise that it ever runs.
  ~ProcessGroupTidegate() override;

  const std::string getBackendName() const override;
  /// A copy: c10d writes the name of a group that it splits off into what it gets here.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  /// Of sparse COO tensors, SUM only; allreduce comes here with them. Blocks, async or not,
  /// and is refused between startCoalescing and endCoalescing.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  /// outputs[rank][i] takes inputs[i] of that rank.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  /// Whatever device is named: the barrier is one of processes.
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  /// Over the store alone, see MonitoredBarrier: one that fails (DistBackendError) leaves the group
  /// usable. A timeout of zero is one, a negative one means the group's.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  /// Takes the next message of `tag` from whoever sends one; Work::sourceRank tells who it was.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// False: transfers never block their caller and are matched by tag, so that a batch in any order
  /// needs no grouping, and batch_isend_irecv gives a Work for each. True would gain nothing, and
  /// where a call of a batch is refused, torch would go on to swallow the group's collectives: its
  /// context manager does not clean up after exceptions. startCoalescing works all the same.
  bool supportsCoalescing() const override { return false; }
  /// From here to endCoalescing no operation of the calling thread blocks it, see CoalescingWindow.
  void startCoalescing() override;
  /// One Work for all operations since startCoalescing; done at once if there were none.
  WorkPtr endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  /// The group of `ranks`, which are ranks of this group in the order of their new ranks; null on
  /// other ranks. Waits for no other rank. Every rank of the new group must call it, and `opts`
  /// must name the group; groups of other ranks may have the same name. A second call for the same
  /// name and ranks gives the same object as long as that is in use, for some versions of c10d
  /// split once for each type of device: not once it failed or was shut down, here or on a peer.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  /// Nothing to agree on: every group counts from 0.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override;
  /// Holds the group's all-gathers to limits of its own. ValueError for bad ones.
  void SetLimits(const LimitTexts& limits);
  /// ValueError unless `timeout` is positive.
  void setTimeout(std::chrono::milliseconds timeout) override;

  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  /// Of cpu: in the group's shared memory where there is room (Communicator::Allocate), so that the
  /// group's collectives read it where it lies. It may outlive the group. Not resizable.
  at::Tensor allocateTensor(long numel, at::TensorOptions options) override;

  c10d::ErrorType getError() override;
  void abort() override;
  /// Also throws what a signal handler threw meanwhile; the group is shut down all the same.
  void shutdown() override;

 private:
  /// Lets `add(builder)` translate the arguments; refuses the call or submits it. `describe()`
  /// returns the CommsArguments and is called if a profiler runs.
  template <typename OptionsOfCall, typename Add, typename Describe>
  WorkPtr Launch(const CallKind& kind, const OptionsOfCall& opts, Add&& add, Describe&& describe);
  WorkPtr Submit(const CallKind& kind, CallBuilder& builder, bool async,
                 std::chrono::milliseconds timeout, std::shared_ptr<WorkRecord> record);
  WorkPtr Transfer(const CallKind& kind, const Tensors& tensors, int peer, int tag);
  Status CheckTransfer(const CallKind& kind, const Tensors& tensors, int peer) const;
  /// Neither shut down nor failed, and no rank has left it.
  bool InUse() const;
  /// The reason with operation, group and rank.
  Status Explain(std::string_view call, const Status& reason) const;
  /// `timeout` or, where that is unset, the group's.
  Nanoseconds TimeoutOf(std::chrono::milliseconds timeout) const;
  CommsGroup DescribeGroup() const;
  /// Before each call: a window that an exception of the caller left open is none.
  void CloseAbandonedWindow();

  using SplitKey = std::pair<std::string, std::vector<int>>;  ///< Name and ranks.

  const std::shared_ptr<Communicator> communicator_;  // Shared with the Works.
  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;  ///< Outranks the one in options_.
  MonitoredBarrier monitored_barrier_;
  CoalescingWindows windows_;
  std::atomic<bool> closed_{false};  ///< Shut down or aborted.
  std::mutex splits_mutex_;
  /// Each a ProcessGroupTidegate; guarded by splits_mutex_.
  std::map<SplitKey, c10::weak_intrusive_ptr<c10d::Backend>> splits_;
};

}  // namespace tidegate
