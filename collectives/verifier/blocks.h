#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/verifier/verifier.h"

namespace tidegate::verifier {

/// Which blocks each rank has for a problem, how long they are, and what must come out.
class Blocks {
 public:
  /// kInvalidArgument where the sizes are not those of the collective.
  static Result<Blocks> Make(const Problem& problem, int parts);

  int ranks() const { return ranks_; }
  Collective collective() const { return problem_.collective; }
  /// Of input or output.
  int CountOf(int rank, Buffer buffer) const;
  std::int64_t BytesOf(int rank, Buffer buffer, int block) const;
  std::int64_t LongestOf(int rank) const;
  /// Blocks as Problem::sizes numbers them, and the bytes of one.
  std::int64_t sizes() const;
  std::int64_t SizeAt(std::int64_t i) const {
    return problem_.sizes.size() == 1 ? problem_.sizes[0]
                                      : problem_.sizes[static_cast<std::size_t>(i)];
  }
  std::int64_t chunk_bytes() const { return problem_.chunk_bytes; }
  std::int64_t ChunksOf(std::int64_t bytes) const {
    return (bytes + chunk_bytes() - 1) / chunk_bytes();
  }
  /// Bytes that a block of `bytes` has in `chunk`.
  std::int64_t LengthOf(std::int64_t bytes, std::int64_t chunk) const {
    const std::int64_t left = bytes - chunk * chunk_bytes();
    return left < 0 ? 0 : (left < chunk_bytes() ? left : chunk_bytes());
  }

  /// The plain input that `block` of the output of `rank` must be; none where it is a reduction.
  struct Source {
    int rank;
    int block;
  };
  std::optional<Source> SourceOf(int rank, int block) const;
  /// The block of everybody's input whose reduction `block` of the output of `rank` must be.
  int ReducedBlockOf(int rank, int block) const;

  /// The block of the output of `rank` that may be the same memory as `block` of its input.
  std::optional<int> InPlaceOf(int rank, int block) const;
  /// broadcast: the root's output is its input.
  bool IsGiven(int rank) const;
  /// Whether blocks of inputs, or of outputs, are numbered by ranks, and so move with them.
  bool Moves(Buffer buffer) const;

 private:
  Blocks(const Problem& problem, int parts);
  Problem problem_;
  int ranks_;
  int parts_;
  std::vector<std::int64_t> longest_;  ///< One entry where all ranks have the same.
};

}  // namespace tidegate::verifier
