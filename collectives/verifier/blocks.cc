#include "collectives/verifier/blocks.h"

#include <algorithm>
#include <string>

namespace tidegate::verifier {
namespace {

bool IsCutIntoParts(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kBroadcast ||
         collective == Collective::kReduce;
}

std::int64_t SizesOf(Collective collective, int ranks, int parts) {
  if (IsCutIntoParts(collective)) return parts;
  if (collective == Collective::kBarrier) return 0;
  return collective == Collective::kAllToAll ? std::int64_t{ranks} * ranks : ranks;
}

Status Invalid(const std::string& message) { return Status(StatusCode::kInvalidArgument, message); }

}  // namespace

Result<Blocks> Blocks::Make(const Problem& problem, int parts) {
  if (problem.placement == nullptr) return Invalid("a problem without a placement");
  const int ranks = problem.placement->ranks();
  if (problem.root < 0 || problem.root >= ranks)
    return Invalid("root " + std::to_string(problem.root) + " is outside [0, " +
                   std::to_string(ranks) + ")");
  if (problem.chunk_bytes <= 0)
    return Invalid("chunks of " + std::to_string(problem.chunk_bytes) + " bytes");
  if (parts < 1 || parts > Placement::kMaxRanks)
    return Invalid("schedules in " + std::to_string(parts) +
                   " parts; there must be between 1 and " + std::to_string(Placement::kMaxRanks));
  if (parts != 1 && !IsCutIntoParts(problem.collective))
    return Invalid(std::string(NameOf(problem.collective)) +
                   " comes with its blocks, but parts is " + std::to_string(parts));
  const auto expected = static_cast<std::size_t>(SizesOf(problem.collective, ranks, parts));
  if (problem.collective != Collective::kBarrier && problem.sizes.size() != 1 &&
      problem.sizes.size() != expected)
    return Invalid(std::string(NameOf(problem.collective)) + " of " + std::to_string(ranks) +
                   " ranks in " + std::to_string(parts) + " parts needs " +
                   std::to_string(expected) + " sizes, got " +
                   std::to_string(problem.sizes.size()));
  for (const std::int64_t size : problem.sizes)
    if (size < 0 || size / problem.chunk_bytes >= 1 << 24)
      return Invalid("a block of " + std::to_string(size) + " bytes in chunks of " +
                     std::to_string(problem.chunk_bytes));
  return Blocks(problem, parts);
}

Blocks::Blocks(const Problem& problem, int parts)
    : problem_(problem), ranks_(problem.placement->ranks()), parts_(parts) {
  const bool differs = collective() == Collective::kAllToAll && problem_.sizes.size() > 1;
  for (int rank = 0; rank < (differs ? ranks_ : 1); ++rank) {
    std::int64_t longest = 0;
    if (differs) {
      for (int block = 0; block < ranks_; ++block)
        longest = std::max(
            {longest, BytesOf(rank, Buffer::kInput, block), BytesOf(rank, Buffer::kOutput, block)});
    } else if (collective() != Collective::kBarrier) {
      longest = *std::max_element(problem_.sizes.begin(), problem_.sizes.end());
    }
    longest_.push_back(longest);
  }
}

std::int64_t Blocks::sizes() const { return SizesOf(collective(), ranks_, parts_); }

int Blocks::CountOf(int rank, Buffer buffer) const {
  const bool is_input = buffer == Buffer::kInput;
  const bool is_root = rank == problem_.root;
  switch (collective()) {
    case Collective::kAllGather:
      return is_input ? 1 : ranks_;
    case Collective::kReduceScatter:
      return is_input ? ranks_ : 1;
    case Collective::kAllReduce:
      return parts_;
    case Collective::kBroadcast:
      return is_input && !is_root ? 0 : parts_;
    case Collective::kReduce:
      return !is_input && !is_root ? 0 : parts_;
    case Collective::kGather:
      return is_input ? 1 : (is_root ? ranks_ : 0);
    case Collective::kScatter:
      return is_input ? (is_root ? ranks_ : 0) : 1;
    case Collective::kAllToAll:
      return ranks_;
    case Collective::kBarrier:
      return 0;
  }
  return 0;
}

std::int64_t Blocks::BytesOf(int rank, Buffer buffer, int block) const {
  const bool is_input = buffer == Buffer::kInput;
  const std::int64_t r = rank;
  const std::int64_t b = block;
  const std::int64_t n = ranks_;
  switch (collective()) {
    case Collective::kAllGather:
    case Collective::kGather:
      return SizeAt(is_input ? r : b);
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return SizeAt(is_input ? b : r);
    case Collective::kAllToAll:
      return SizeAt(is_input ? r * n + b : b * n + r);
    default:
      return SizeAt(b);
  }
}

/// Of what the rank itself has: as the executor, which looks at no other block.
std::int64_t Blocks::LongestOf(int rank) const {
  switch (collective()) {
    case Collective::kGather:
      if (rank != problem_.root) return BytesOf(rank, Buffer::kInput, 0);
      break;
    case Collective::kScatter:
      if (rank != problem_.root) return BytesOf(rank, Buffer::kOutput, 0);
      break;
    default:
      break;
  }
  return longest_.size() == 1 ? longest_[0] : longest_[static_cast<std::size_t>(rank)];
}

std::optional<Blocks::Source> Blocks::SourceOf(int rank, int block) const {
  switch (collective()) {
    case Collective::kAllGather:
    case Collective::kGather:
      return Source{block, 0};
    case Collective::kBroadcast:
      return Source{problem_.root, block};
    case Collective::kScatter:
      return Source{problem_.root, rank};
    case Collective::kAllToAll:
      return Source{block, rank};
    default:
      return std::nullopt;
  }
}

int Blocks::ReducedBlockOf(int rank, int block) const {
  return collective() == Collective::kReduceScatter ? rank : block;
}

std::optional<int> Blocks::InPlaceOf(int rank, int block) const {
  switch (collective()) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      if (block < CountOf(rank, Buffer::kOutput)) return block;
      return std::nullopt;
    case Collective::kReduceScatter:
      if (block == rank) return 0;
      return std::nullopt;
    case Collective::kScatter:
      if (rank == problem_.root && block == rank) return 0;
      return std::nullopt;
    case Collective::kGather:
      if (rank == problem_.root) return rank;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

bool Blocks::IsGiven(int rank) const {
  return collective() == Collective::kBroadcast && rank == problem_.root;
}

bool Blocks::Moves(Buffer buffer) const {
  switch (collective()) {
    case Collective::kAllGather:
      return buffer == Buffer::kOutput;
    case Collective::kReduceScatter:
      return buffer == Buffer::kInput;
    case Collective::kAllToAll:
      return true;
    case Collective::kAllReduce:
      return parts_ == ranks_;
    default:
      return false;
  }
}

}  // namespace tidegate::verifier
