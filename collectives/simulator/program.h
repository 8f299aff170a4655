#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "common/status.h"

namespace tidegate {

/// Sizes of the caller's blocks, as a collective defines them.
///
/// all_gather, reduce_scatter, gather, scatter: of each rank's block; all_to_all: of what each rank
/// gets from every other; one entry: all alike. all_reduce, broadcast, reduce: one entry, the
/// tensor, which schedules cut into parts. barrier: empty.
struct BlockSizes {
  std::vector<std::uint64_t> bytes;
};

/// A schedule as the simulator runs it: lengths in bytes instead of blocks, ranks relative to its
/// own, so that ranks that do the same have the same program, and consecutive moves of one way in
/// one.
struct Program {
  enum class Kind : std::uint8_t { kLocal, kPut, kReducePut, kSignal, kWait };
  struct Op {
    Kind kind = Kind::kLocal;
    std::int8_t wait_offset = 0;
    std::int8_t guard_offset = 0;
    std::int32_t lag = 0;
    std::int32_t mark = 0;
    std::int32_t way = -1;      ///< Of `ways`; -1: signals, and waits for all.
    std::int32_t put_way = -1;  ///< The second half of a kReducePut.
    std::int32_t length = 0;    ///< Of `lengths`.
    bool operator==(const Op&) const = default;
  };
  /// Between which ranks an op moves or waits.
  struct Way {
    enum class Kind : std::uint8_t { kLocal, kPut, kWait };
    Kind kind = Kind::kLocal;
    std::int32_t reads = 0;
    std::vector<std::int32_t> peers;  ///< How far on from this rank, modulo the ranks; ascending.
    auto operator<=>(const Way&) const = default;
  };
  struct Length {
    struct Part {
      std::uint64_t bytes;
      std::uint32_t count;
      auto operator<=>(const Part&) const = default;
    };
    std::uint64_t longest = 0;
    std::vector<Part> parts;  ///< Of moves: how many blocks there are of each size.
    /// Bytes of chunk `chunk` of all blocks.
    std::uint64_t BytesOf(std::int64_t chunk, std::uint64_t chunk_bytes) const;
    auto operator<=>(const Length&) const = default;
  };

  std::vector<Op> ops;
  std::vector<Way> ways;
  std::vector<Length> lengths;
  int sub_slots = 1;
  int period = 1;
  int marks = 0;
  int max_lag = 0;
  std::uint64_t longest = 0;  ///< Of the rank's blocks.

  /// Ops by lag, in their order: those of lag l are by_lag[lag_begin[l] .. lag_begin[l + 1]).
  std::vector<std::int32_t> lag_begin;
  std::vector<std::int32_t> by_lag;
  /// Peers that it puts to, numbered in the order of their ways.
  std::unordered_map<std::int32_t, std::int32_t> put_list_to;

  /// Whether all that was compiled is equal; the indices above follow from it.
  bool SameAs(const Program& other) const;
  /// Whether it does the same in another order, as where operands stand in that of their ranks.
  bool IsReordered(const Program& other) const;
  std::uint64_t Hash() const;
};

/// kInvalidArgument, naming rank and step, for a schedule that names ranks or blocks that do not
/// exist, or sizes that do not fit its collective.
Result<Program> Compile(const Schedule& schedule, const BlockSizes& sizes);

}  // namespace tidegate
