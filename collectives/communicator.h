#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/admission/limits.h"
#include "collectives/admission_settings.h"
#include "collectives/operation.h"
#include "collectives/requests.h"
#include "collectives/transport/bootstrap.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/status.h"

namespace tidegate {

struct CommunicatorOptions {
  std::string group_name;
  int rank = 0;
  int ranks = 1;
  std::vector<std::int64_t> global_ranks;  ///< Empty: the ranks of the group are 0 .. ranks - 1.
  Nanoseconds timeout = std::chrono::minutes(30);  ///< Of every operation that names none.
  Config config;
  /// For its all-gathers; else those of the process, which are those of `config` until SetLimits.
  std::optional<AdmissionLimits> limits = std::nullopt;
  /// With keys of this life of the group alone: programs destroy a group and make it again. May be
  /// null when ranks is 1.
  std::unique_ptr<Bootstrap> bootstrap;
};

/// Told on the calling thread of an all-gather that waits for room before its operation begins.
class HoldObserver {
 public:
  virtual ~HoldObserver() = default;
  virtual void BeginHold() = 0;
  virtual void EndHold() = 0;
};

struct SubmitOptions {
  bool async = true;        ///< False: runs on the calling thread and returns a done Operation.
  Nanoseconds timeout{-1};  ///< Zero or negative: the communicator's.
  std::shared_ptr<void> keepalive =
      nullptr;           ///< Dropped when the operation is done, never by the progress thread.
  bool may_hold = true;  ///< Whether an async call may wait for room among all-gathers.
  HoldObserver* hold_observer = nullptr;  ///< Used during the call alone.
};

/// One rank's membership of one group: takes requests, keeps their order, runs them over shared
/// memory. Thread-safe; every rank must submit the same collectives in the same order.
///
/// Life: Create (cheap: no thread, no memory, two requests to the store) -> any number of
/// operations (the first one attaches to the group's segment) -> Shutdown or Abort, both
/// idempotent. After a failure that other ranks were told of (mismatch, timeout, lost peer, abort)
/// every operation fails with that reason.
///
/// Order: collectives run in two lanes, reductions in one and the rest in the other, each in order
/// of submission; one whose buffers overlap an unfinished one of the other lane waits for it, and a
/// barrier for everything before it. Sends and receives are matched per peer and tag, in order (see
/// point_to_point.h).
class Communicator {
 public:
  /// kInvalidArgument for a rank outside [0, ranks) or more than 64 ranks.
  static Result<std::shared_ptr<Communicator>> Create(CommunicatorOptions options);
  virtual ~Communicator() = default;

  /// Runs the requests, which must be of one kind of collective, one after the other as one
  /// operation. The group's first operation attaches on the calling thread, async or not: it may
  /// block while another rank makes the segment. A sync call returns a done operation, unless a
  /// signal interrupted it behind others in the queue. A request that is wrong on its face fails
  /// with kInvalidArgument or kUnsupported before anything is written, and ranks that wait for this
  /// one are told so. An async all-gather for which there is no room in flight keeps the calling
  /// thread here if the limits say so, at most until the operation's deadline.
  virtual std::shared_ptr<Operation> Submit(Requests requests, SubmitOptions options) = 0;

  /// Records that this rank refused a call of `collective` before it got here (for example a tensor
  /// that is not contiguous): takes the call's place in the order, so that peers which made the
  /// call fail at once, naming this rank. `reason` goes to the log. Waits for no peer's
  /// call, but the next call waits until every peer has come to this one.
  virtual void Refuse(Collective collective, const std::string& reason) = 0;

  /// `dtype` is part of the match: both ends must agree on it and on the bytes.
  virtual std::shared_ptr<Operation> Send(Block data, DataType dtype, int peer, std::int64_t tag,
                                          SubmitOptions options) = 0;
  /// `peer` may be kAnySource; Operation::source() then tells whose message it was.
  virtual std::shared_ptr<Operation> Receive(Block data, DataType dtype, int peer, std::int64_t tag,
                                             SubmitOptions options) = 0;

  /// Shared memory for a tensor of `bytes` (above 0), page-aligned: collectives of this group whose
  /// inputs lie there, one behind the other, are read by the other ranks where they lie. It is
  /// given back when the last copy of the result goes, at any time and on any thread. Null where
  /// there is none, so that ordinary memory must do: a group of one rank, TIDEGATE_HEAP_BYTES=0,
  /// or, with one warning a group, no room. Attaches the group first, like an operation; fails like
  /// one that could not be begun.
  virtual Result<std::shared_ptr<std::byte>> Allocate(std::size_t bytes) = 0;

  /// Fails everything in flight here and on the peers, within milliseconds, from any thread.
  virtual void Abort(const std::string& reason) = 0;
  /// Waits for what is in flight (at most Config::shutdown_timeout), tells the peers that this rank
  /// has left, and releases the memory. Must not be called holding the GIL.
  virtual void Shutdown() = 0;

  /// The reason why the group can no longer be used; ok while it can.
  virtual Status health() const = 0;
  /// The same, but ok for a group that was shut down without having failed.
  virtual Status failure() const = 0;
  /// Whether a peer has shut the group down in an orderly way, as far as this rank, which must have
  /// used the group, knows.
  virtual bool HasPeerLeft() const = 0;
  /// Collectives submitted so far.
  virtual std::uint64_t sequence() const = 0;
  virtual void set_timeout(Nanoseconds timeout) = 0;
  /// Limits of the group's own, instead of the process's, for its all-gathers; the rate also for
  /// those that have begun.
  virtual void SetLimits(const AdmissionLimits& limits) = 0;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual const std::string& group_name() const = 0;
};

/// Statistics of all groups this process ever had, as the JSON text of `tidegate.stats()`:
/// {"version":1,"rank":r,"groups":{name:{"ranks":[..],"ops":{op:{"calls","bytes","seconds",
/// "errors"}},"admission":{..}}},"links":{"shm":{"bytes","resident_bytes","single_copy_bytes"}},
/// "admission":{..}}, the latter as Admission::ToJson has it; a group has it only if it has limits
/// of its own. Bytes of an operation are those of its output (for reduce_scatter and send: of its
/// input); bytes of a link those read from peers, of which resident bytes from tensors in shared
/// memory and single-copy bytes from tensors in the memory of their processes.
std::string StatsJson();

/// Sets the limits of the all-gathers of this process, in all its groups together that have none of
/// their own; the rate also of those that have begun. Each rank may have its own.
Status SetLimits(const LimitTexts& texts);

/// Asks, now and then, on a thread that blocks in a sync call or in Operation::Wait, whether it
/// should give up (a signal arrived); true fails the operation with kInterrupted and aborts its
/// group. Null (the default): never.
void SetInterruptCheck(bool (*interrupted)());

/// Shuts every communicator down, writes the statistics file and joins all threads. For the exit
/// hook; must not be called holding the GIL. Communicators made afterwards start afresh.
void ShutdownProcess();

}  // namespace tidegate
