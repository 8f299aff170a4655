#include "collectives/verifier/invariance.h"

#include <algorithm>
#include <compare>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "collectives/verifier/where.h"

namespace tidegate::verifier {
namespace {

Status Invalid(const std::string& message) { return Status(StatusCode::kInvalidArgument, message); }

/// A block or sub-slot: one of those of a slice.
struct Cell {
  Buffer buffer = Buffer::kInput;
  int owner = -1;
  int block = 0;
  int origin = -1;
  auto operator<=>(const Cell&) const = default;
};
struct Term {
  int source = -1;  ///< Rank that it comes from.
  int contributor = -1;
  Cell cell;
};
/// What a step does for one of its blocks.
struct Move {
  int step = 0;
  StepKind kind = StepKind::kCopy;
  bool partial = false;
  bool staging = false;
  int lag = 0;
  int guard = 0;
  int offset = 0;
  int mark = 0;
  int peer = kAllPeers;
  std::int64_t longest =
      0;  ///< Bytes that say whether it runs, where a guard or nothing else does.
  std::int64_t bytes = 0;
  Cell dst;
  Cell src;
  std::vector<Term> terms;

  auto Key() const {
    return std::tie(kind, partial, staging, lag, guard, offset, mark, peer, longest, bytes);
  }
};

class Unroller {
 public:
  Unroller(const Schedule& schedule, const Blocks& blocks, Orbit orbit, int by)
      : schedule_(schedule), blocks_(blocks), orbit_(orbit), by_(by) {}

  /// Operands are sorted by their `sources` if given, by their cells if their order does not
  /// matter, and else stay as they are.
  std::vector<Move> Run(const std::vector<int>* sources, bool in_any_order) {
    std::vector<Move> moves;
    for (std::size_t i = 0; i < schedule_.steps.size(); ++i) {
      const Step& step = schedule_.steps[i];
      Move move;
      move.step = static_cast<int>(i);
      move.kind = step.kind;
      move.staging = step.staging;
      move.lag = step.lag;
      move.guard = int{step.guard_offset};
      if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait) {
        move.offset = int{step.wait_offset};
        move.mark = step.mark;
        move.peer = step.peer == kAllPeers ? kAllPeers : orbit_.Forward(step.peer, by_);
        move.longest = LongestOf(step.extent);
        moves.push_back(move);
        continue;
      }
      move.partial = step.partial;
      if (move.guard != 0) move.longest = LongestOf(step.extent);
      for (int block = 0; block < step.dst.count; ++block) {
        move.bytes = blocks_.BytesOf(schedule_.rank, step.extent.buffer, step.extent.at(block));
        move.dst = CellOf(step.dst, block);
        if (step.kind != StepKind::kReduce) move.src = CellOf(step.src, block);
        move.terms = TermsOf(step, block, sources);
        if (in_any_order)
          std::sort(move.terms.begin(), move.terms.end(),
                    [](const Term& a, const Term& b) { return a.cell < b.cell; });
        moves.push_back(move);
      }
    }
    SortWaits(moves);
    return moves;
  }

 private:
  std::int64_t LongestOf(const Slice& extent) const {
    if (extent == kLongestBlock) return blocks_.LongestOf(schedule_.rank);
    std::int64_t longest = 0;
    for (int i = 0; i < extent.count; ++i)
      longest = std::max(longest, blocks_.BytesOf(schedule_.rank, extent.buffer, extent.at(i)));
    return longest;
  }

  Cell CellOf(const Slice& slice, int i) const {
    if (slice.buffer == Buffer::kStage) {
      const bool moves = slice.origin >= 0 && blocks_.Moves(Buffer::kInput);
      return {slice.buffer, orbit_.Forward(slice.owner, by_), slice.at(i),
              moves ? orbit_.Forward(slice.origin, by_) : int{slice.origin}};
    }
    const bool moves = blocks_.Moves(slice.buffer);
    return {slice.buffer, -1, moves ? orbit_.Forward(slice.at(i), by_) : slice.at(i)};
  }

  std::vector<Term> TermsOf(const Step& step, int block, const std::vector<int>* sources) const {
    std::vector<Term> terms;
    for (int i = 0; i < step.operand_count; ++i) {
      const auto index = static_cast<std::size_t>(step.first_operand) + static_cast<std::size_t>(i);
      const Operand& operand = schedule_.operands[index];
      Term term;
      term.cell = CellOf(operand.slice, block);
      if (operand.contributor >= 0) term.contributor = orbit_.Forward(operand.contributor, by_);
      if (sources != nullptr && (*sources)[index] >= 0)
        term.source = orbit_.Forward((*sources)[index], by_);
      terms.push_back(term);
    }
    if (sources != nullptr)
      std::stable_sort(terms.begin(), terms.end(),
                       [](const Term& a, const Term& b) { return a.source < b.source; });
    return terms;
  }

  /// Waits that follow each other directly are a set.
  static void SortWaits(std::vector<Move>& moves) {
    for (auto begin = moves.begin(); begin != moves.end();) {
      if (begin->kind != StepKind::kWait) {
        ++begin;
        continue;
      }
      const auto end = std::find_if(begin, moves.end(),
                                    [](const Move& move) { return move.kind != StepKind::kWait; });
      std::sort(begin, end, [](const Move& a, const Move& b) { return a.Key() < b.Key(); });
      begin = end;
    }
  }

  const Schedule& schedule_;
  const Blocks& blocks_;
  const Orbit orbit_;
  const int by_;
};

bool AreEqual(const Move& a, const Move& b) {
  return a.Key() == b.Key() && a.dst == b.dst && a.src == b.src &&
         std::equal(a.terms.begin(), a.terms.end(), b.terms.begin(), b.terms.end(),
                    [](const Term& x, const Term& y) {
                      return x.contributor == y.contributor && x.cell == y.cell;
                    });
}

}  // namespace

Status CheckSetting(const Problem& problem, const Blocks& blocks, Orbit orbit) {
  const int shift = orbit.representatives();
  const int ranks = orbit.ranks();
  const std::string named = "a shift of " + std::to_string(shift);
  if (shift < 1 || shift > ranks || ranks % shift != 0)
    return Invalid(named + " does not divide " + std::to_string(ranks) + " ranks");
  if (orbit.is_trivial()) return Status();
  const bool moves = blocks.Moves(Buffer::kInput) || blocks.Moves(Buffer::kOutput);
  if (!moves && problem.collective != Collective::kBarrier)
    return Invalid(named + ": " + std::string(NameOf(problem.collective)) +
                   " does not move with its ranks");
  const Placement& placement = *problem.placement;
  std::vector<int> moved_node(static_cast<std::size_t>(placement.nodes()), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    const int next = orbit.Forward(rank, shift % ranks);
    int& node = moved_node[static_cast<std::size_t>(placement.node_of(rank))];
    if (node < 0) node = placement.node_of(next);
    if (node != placement.node_of(next) ||
        placement.ranks_on(node).size() != placement.ranks_on(placement.node_of(rank)).size())
      return Invalid(named + " moves rank " + std::to_string(rank) + " away from its node");
    for (const Buffer buffer : {Buffer::kInput, Buffer::kOutput}) {
      // The blocks of other ranks are alike where sizes are, which the next rank shows.
      const int count = std::min(blocks.CountOf(rank, buffer), rank < shift ? ranks : 1);
      for (int block = 0; block < count; ++block) {
        const int to = blocks.Moves(buffer) ? orbit.Forward(block, shift % ranks) : block;
        if (blocks.BytesOf(rank, buffer, block) != blocks.BytesOf(next, buffer, to))
          return Invalid(named + ": block " + std::to_string(block) + " of rank " +
                         std::to_string(rank) + " is not as long as that of rank " +
                         std::to_string(next));
      }
    }
  }
  return Status();
}

Status CheckInvariant(const Schedule& schedule, const Schedule& representative,
                      const std::vector<int>* sources, const Blocks& blocks, Orbit orbit) {
  const int by = orbit.ShiftOf(schedule.rank);
  const bool in_any_order = sources == nullptr;
  const std::vector<Move> is = Unroller(schedule, blocks, orbit, 0).Run(nullptr, in_any_order);
  const std::vector<Move> should =
      Unroller(representative, blocks, orbit, by).Run(sources, in_any_order);
  for (std::size_t i = 0; i < is.size(); ++i) {
    const bool equal = i < should.size() && AreEqual(is[i], should[i]);
    if (!equal)
      return Reject(
          schedule, static_cast<std::size_t>(is[i].step),
          "is not what rank " + std::to_string(representative.rank) + " does, moved by " +
              std::to_string(by) + ": " +
              (i < should.size() ? TextOf(representative, static_cast<std::size_t>(should[i].step))
                                 : "it ends before"));
  }
  if (is.size() < should.size())
    return Invalid(Program(schedule) + " ends before rank " + std::to_string(representative.rank) +
                   " does, which goes on with step " +
                   TextOf(representative, static_cast<std::size_t>(should[is.size()].step)));
  return Status();
}

std::vector<int> RanksToCompare(Orbit orbit, int compared) {
  const int ranks = orbit.ranks();
  const int shift = orbit.representatives();
  std::set<int> chosen;
  if (compared <= 0 || compared >= ranks - shift) {
    for (int rank = shift; rank < ranks; ++rank) chosen.insert(rank);
  } else {
    // What wraps around does so at the ends.
    for (int i = 0; i < std::max(1, compared / 4); ++i) {
      chosen.insert(shift + i);
      chosen.insert(ranks - 1 - i);
    }
    std::mt19937 random(static_cast<std::uint32_t>(ranks));
    while (static_cast<int>(chosen.size()) < compared)
      chosen.insert(shift + static_cast<int>(random() % static_cast<unsigned>(ranks - shift)));
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace tidegate::verifier
