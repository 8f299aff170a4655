#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/calibration/data_paths.h"
#include "collectives/executor/execution.h"
#include "collectives/requests.h"
#include "common/inline_vector.h"
#include "common/status.h"

namespace tidegate {

/// What of a call follows from its shape: from all that its request says but where blocks lie.
struct CallTraits {
  Fingerprint fingerprint;  ///< But for its sequence.
  std::uint64_t shape = 0;  ///< As Invocation's.
  ReduceKernel kernel = nullptr;
  ReduceKernel partial_kernel = nullptr;
  std::size_t element_bytes = 1;
  bool wide_slots = false;
  std::size_t chunk_bytes = 0;
  bool streaming = false;           ///< Of a PreparedCall: that it does.
  bool streaming_in_place = false;  ///< If an output is the memory of an input.
  bool single_copy = false;
  bool crowded_single_copy = false;
  InputMemory input_memory = InputMemory::kAny;
  const Schedule* schedule = nullptr;
  bool copy_inputs = false;
  std::size_t output_bytes = 0;  ///< What statistics count; of the input for reduce_scatter.
};

/// A CollectiveRequest that has been checked and described, ready to be bound to a schedule.
struct PreparedCall : CallTraits {
  // Blocks that the schedule sees instead of the request's: the parts that it cuts them into, or
  // inputs that MakeInputsPrivate copies. Empty: it sees the request's.
  Blocks inputs;
  Blocks outputs;
  InlineVector<std::uint64_t, 2 * kRanksInside> splits;
  std::unique_ptr<std::byte[]> private_inputs;  ///< Owns what MakeInputsPrivate copied.
};

/// Bytes by which an algorithm is chosen, as PlanRequest counts them: equal on all ranks that make
/// the same call. all_to_all, unless it is even: a constant, since ranks do not share its sizes.
std::size_t MessageBytes(const CollectiveRequest& request);

/// Of all outputs together.
std::size_t OutputBytes(const Requests& requests);

/// Whether ranks that may read each other's memory do so in calls with `bytes` in all blocks
/// together; `most`: of the DataPaths that hold.
bool MayCopyOnce(Collective collective, std::size_t bytes, std::size_t most);

/// Checks `request` against the table in request.h for `rank` of `ranks`: kInvalidArgument or
/// kUnsupported with the offending values.
Status CheckRequest(const CollectiveRequest& request, int rank, int ranks);

/// Whether two requests differ in nothing but where their blocks lie.
bool HaveSameShape(const CollectiveRequest& a, const CollectiveRequest& b);

/// Describes a checked request, and all of its shape. `stage_bytes` decides how much of the stage
/// the call may use.
CallTraits TraitsOf(const CollectiveRequest& request, const Schedule& schedule,
                    std::size_t stage_bytes, const DataPaths& paths);

/// Makes `call`, which is empty, of a request of the shape that `traits` are of; `sequence` is its
/// number in its group.
void Prepare(const CollectiveRequest& request, const CallTraits& traits, std::uint64_t sequence,
             PreparedCall* call);

/// The same for a request of a shape that is not known; the result has all blocks of its own.
PreparedCall Prepare(const CollectiveRequest& request, const Schedule& schedule,
                     std::uint64_t sequence, std::size_t stage_bytes, const DataPaths& paths);

/// What the executor needs of `call`, which has all blocks of its own and must outlive it.
Invocation Bind(const PreparedCall& call);
/// The same of any call and the request that it was made of. Both must outlive it.
Invocation Bind(const PreparedCall& call, const CollectiveRequest& request);

/// Copies the inputs of a call with copy_inputs, once it may start.
Status MakeInputsPrivate(PreparedCall& call);

/// Makes the fingerprint of each member of a coalesced call depend on all of them, so that ranks
/// whose later members differ fail before the first one is run.
void BindTogether(std::span<PreparedCall> calls);

/// True when one call writes what the other reads or writes.
bool Overlaps(const CollectiveRequest& a, const CollectiveRequest& b);

}  // namespace tidegate
