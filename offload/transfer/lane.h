#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace tidegate::offload {

enum class Direction { kDeviceToHost, kHostToDevice };

std::string_view NameOf(Direction direction);

/// A piece of memory to copy. Source and destination may not overlap; zero bytes are a chunk, too,
/// and its addresses are not looked at.
struct Chunk {
  const void* source = nullptr;
  void* destination = nullptr;
  std::size_t bytes = 0;
};

/// The completion of one chunk: its number in its lane, from 1. 0 is one that has been there
/// always.
struct CopyEvent {
  std::uint64_t number = 0;
};

/// Copies chunks in one direction, in the order in which they were queued, while its caller does
/// something else. Two lanes, one a direction, run at the same time.
///
/// 1. `Copy` queues a chunk and returns its event. At most `capacity` chunks are queued or being
///    copied; with that many, Copy waits for the oldest one.
/// 2. `Wait` returns when the event's chunk, and so every one before it, is copied. The memory of a
///    chunk belongs to the lane until then: nobody writes the source or touches the destination.
/// 3. The first failure, of a copy or by `Abort`, is the lane's last word: chunks that were copied
///    before stay copied, all others fail with its Status, at once. Memory of chunks that failed is
///    the caller's again after `AwaitIdle`.
/// 4. The destructor aborts what is queued, and blocks until the copy that is being made, if any,
///    has ended.
///
/// Copy is called by one thread at a time, everything else by any. Nothing is allocated per chunk.
/// In a forked child a lane is of no use: what would need it to copy returns kUnsupported. It may
/// be destroyed there.
///
/// Statuses: kInvalidArgument for a chunk that cannot be (it is not queued, and the lane goes on),
/// kTimeout past a deadline (the lane goes on), otherwise that of the lane's failure.
class Lane {
 public:
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  virtual Direction direction() const = 0;
  virtual std::size_t capacity() const = 0;

  /// Queues a copy; blocks while the lane is full.
  virtual Result<CopyEvent> Copy(const Chunk& chunk, TimePoint deadline) = 0;
  /// Whether Copy would return at once. For the thread that calls it.
  virtual bool HasRoom() const = 0;

  /// Whether Wait would return at once, with success or failure.
  virtual bool IsDone(CopyEvent event) const = 0;
  virtual Status Wait(CopyEvent event, TimePoint deadline) = 0;

  /// Fails the lane with `reason`, unless it has failed. Wakes whoever waits. Does not block.
  virtual void Abort(const Status& reason) = 0;
  /// Blocks until nothing is being copied and nothing queued will be: all chunks are copied, or the
  /// lane has failed and the copy that was being made has ended. Ok in both cases.
  virtual Status AwaitIdle(TimePoint deadline) = 0;

 protected:
  Lane() = default;
};

/// kInvalidArgument for a chunk that no lane can copy: no address, a range that goes beyond the end
/// of the address space, or a destination that overlaps the source.
Status CheckChunk(const Chunk& chunk);

}  // namespace tidegate::offload
