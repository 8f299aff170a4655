#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "collectives/communicator.h"

namespace tidegate {

/// Whether one thread is between startCoalescing and endCoalescing of one group.
///
/// Every operation starts when it is issued, but none blocks its caller, not even a sync one, so
/// that a batch may be issued in any order. A refused call closes the window to what follows: an
/// exception leaves torch's context manager without an endCoalescing, and later sync calls must not
/// be taken for members of a batch that nobody will wait for. So does the end of whoever opened it,
/// where that can be told (SetWindowOwnerHook).
class CoalescingWindow {
 public:
  /// True on the thread that opened the window, while it takes operations.
  bool OpenHere() const { return std::this_thread::get_id() == thread_ && open_; }

 private:
  friend class CoalescingWindows;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::function<bool()> abandoned_;  // Null: cannot be told.
  bool open_ = true;                 // Of that thread alone.
};

/// Asked when a window is opened, on the thread that does so: what tells from then on whether its
/// opener has ended, in which case nobody will close the window; null if that cannot be told. A
/// null hook (the default) tells nothing.
using WindowOwnerHook = std::function<bool()> (*)();
void SetWindowOwnerHook(WindowOwnerHook hook);

/// The windows of one group, at most one a thread. Each method acts on that of the calling thread.
class CoalescingWindows {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CoalescingWindows();
  ~CoalescingWindows();

  /// Forgets a window that was left open; what was issued in it goes on. Returns whether there was
  /// one.
  bool Open();
  /// Closes the window, with nothing to wait for, if whoever opened it has ended; true if so. Costs
  /// the look at one thread-local variable unless a window is open.
  bool CloseAbandoned();
  /// The open window; null if there is none, which costs as little.
  std::shared_ptr<const CoalescingWindow> Current() const;
  /// Adds to the window, if there is one.
  void Add(const c10::intrusive_ptr<c10d::Work>& work);
  /// A call was refused.
  void Refuse();
  /// Ends the window and moves what it holds to `works`; false if there was none.
  bool Close(Works* works);

 private:
  const std::uint64_t id_;  ///< Unlike an address never used again.
};

/// All works of one window as one. Thread-safe.
class CoalescedWork final : public c10d::Work {
 public:
  using Works = CoalescingWindows::Works;

  /// `timeout` is the group's.
  CoalescedWork(std::shared_ptr<Communicator> communicator, Works works,
                std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  /// Of the first work, in order of the calls, that failed.
  std::exception_ptr exception() const override;
  /// Those of all works, in order of the calls.
  std::vector<at::Tensor> result() override;
  /// As TidegateWork::wait, `timeout` for all works together.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Refused: a cpu has no stream that could be blocked.
  void blockCurrentStream() override;
  /// Fails the whole group.
  void abort() override;
  /// A list of the results.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// The worst of all c10d::WorkResults.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Refused: operations are timed by the profiler and by tidegate.stats().
  float getDuration() const override;
  /// Of the first work; the group's for an empty window.
  std::uint64_t getSequencenumber() const override;
  /// Overrides the method that c10d has from 2.14 on; `override` would refuse the older ones.
  std::chrono::milliseconds getTimeout() const;  // NOLINT

 private:
  const std::shared_ptr<Communicator> communicator_;
  const Works works_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace tidegate
