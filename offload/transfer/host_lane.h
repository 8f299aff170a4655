#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "common/ipc/doorbell.h"
#include "offload/transfer/lane.h"

namespace tidegate::offload {

/// A lane whose two ends are both host memory: a thread of its own copies. It stands for a device's
/// copy engine on machines without one.
///
/// The thread is pinned nowhere: on a machine with few processors it runs where the optimizer's
/// threads leave room.
class HostLane final : public Lane {
 public:
  /// Makes one copy, of at least one byte, on the lane's thread. A failure or an exception fails
  /// the lane.
  using CopyFunction = std::function<Status(const Chunk& chunk)>;

  /// kResourceExhausted if the system gives no thread. `copy`: how to copy; else by memcpy.
  /// REQUIRES: 1 <= capacity.
  static Result<std::unique_ptr<HostLane>> Create(Direction direction, std::size_t capacity,
                                                  CopyFunction copy = nullptr);
  ~HostLane() override;

  Direction direction() const override { return direction_; }
  std::size_t capacity() const override { return ring_.size(); }
  Result<CopyEvent> Copy(const Chunk& chunk, TimePoint deadline) override;
  bool HasRoom() const override;
  bool IsDone(CopyEvent event) const override;
  Status Wait(CopyEvent event, TimePoint deadline) override;
  void Abort(const Status& reason) override;
  Status AwaitIdle(TimePoint deadline) override;

 private:
  HostLane(Direction direction, std::size_t capacity, CopyFunction copy);

  static void* Main(void* lane);
  void Serve();
  /// Copies chunk `number`; whether the lane goes on.
  bool Make(std::uint64_t number);
  void Fail(Status reason);

  /// Ok in the process that made the lane.
  Status CheckProcess() const;
  /// Sleeps until `condition`; whether it came true before the deadline.
  template <typename Condition>
  bool Await(const Condition& condition, TimePoint deadline);
  /// What became of chunk `number`, which the lane has failed.
  Status FailureOf(std::uint64_t number) const;
  Status TimeoutOf(const char* what) const;

  const Direction direction_;
  const CopyFunction copy_;
  const std::uint64_t generation_;
  pthread_t thread_{};
  bool has_thread_ = false;

  /// Chunk n lies in ring_[n % capacity], from its queueing until it is copied.
  std::vector<Chunk> ring_;
  /// Chunks queued so far. Written by who calls Copy (release: the chunk), read by the thread.
  std::atomic<std::uint64_t> queued_{0};
  /// Chunks copied so far * 2, + 1 once the lane has failed: then the number stays. Release: the
  /// bytes, or failure_; acquire by whoever goes by it.
  std::atomic<std::uint64_t> state_{0};
  /// Whether the thread may be copying. It says so before it looks at state_ (both sequentially
  /// consistent), so that who sees a failure and then no copying has seen the end of it.
  std::atomic<bool> copying_{false};
  std::atomic<bool> stop_{false};
  Doorbell work_{};      ///< Rung for the thread.
  Doorbell progress_{};  ///< Rung for those who wait.

  std::mutex failing_;  ///< Who fails the lane. Guards failure_ until state_ says that it is there.
  Status failure_;
};

}  // namespace tidegate::offload
