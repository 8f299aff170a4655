// Column all-reduce of whole partial sums, for short tensors between nodes: each rank of a node
// reduces one part of the tensor over its node, exchanges that sum as a whole with the ranks that
// have the same part on the other nodes, and the node reads the result from its stage.
//
// Cost: 2 alpha1 + S beta1 + S gamma of a rank inside its node; between n nodes, all g columns at
// once,
//   one shot: alpha2 + (n-1) S/g beta2, one round, every node to every other;
//   doubling: log2 n (alpha2 + S/g beta2), partners at distances 1, 2, 4, ...; where n is no power
//     of two, up to floor(log2 n) + 2 rounds: some nodes give their sums to a neighbour first, and
//     get the result last.
// Reduce-scatter and all-gather send less, 2 (n-1)/n S/g, in twice as many rounds.
// Extra memory: g + n + 1 chunks a rank, doubling up to g + 2 log2 n + 5, twice.
// Order of reduction, the same on all ranks: a node's ranks in one pass, in their order. Then one
// shot: the sums of all nodes in one pass, in the order of the ranks that carry the part; doubling:
// a balanced tree over these ranks, in which two neighbours may be one leaf. One rounding a pass.
// Sources: doubling with whole vectors, Thakur, Rabenseifner, Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 19(1), 2005, section 4.5, and the folding of what
// exceeds a power of two from Rabenseifner, ICCS 2004; columns as of ColumnFlow.
//
// Nodes of different sizes: as many columns as the largest node has ranks; on a smaller node the
// carrier of column c is local rank c modulo the node's size.

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {
namespace {

/// What one of the members of a column, numbered in the order of their ranks, does in one round:
/// it sends what it holds, or takes in what it gets.
struct Round {
  struct End {
    int member = 0;
    int slot = 0;  ///< Of the receiver, among those of the round.
  };
  std::vector<End> to = {};
  std::vector<End> from = {};
};

/// All rounds of a member. Equal for all members: how many there are, and the slots of each.
struct Rounds {
  std::vector<Round> rounds = {};
  std::vector<int> slots = {};
  int done = 0;           ///< The round that completes what it holds,
  bool is_given = false;  ///< because it gets all of it.
  int count() const { return static_cast<int>(rounds.size()); }
};
using RoundsMaker = Rounds (*)(int me, int members);

Rounds OneShot(int me, int members) {
  Round round;
  for (int distance = 1; distance < members; ++distance) {
    // By distance, so that not all begin with the same member.
    round.to.push_back({(me + distance) % members, members - distance - 1});
    round.from.push_back({(me + distance) % members, distance - 1});
  }
  return {.rounds = {round}, .slots = {members - 1}};
}

Rounds Doubling(int me, int members) {
  const int whole = static_cast<int>(std::bit_floor(static_cast<unsigned>(members)));
  const int extras = members - whole;  // The odd ones of the first pairs.
  const int doublings = std::countr_zero(static_cast<unsigned>(whole));
  const int folds = extras > 0 ? 1 : 0;
  const bool is_paired = me < 2 * extras;
  const bool is_extra = is_paired && me % 2 == 1;
  const auto member_at = [&](int index) { return index < extras ? 2 * index : index + extras; };
  Rounds all;
  all.rounds.resize(static_cast<std::size_t>(doublings) + 2 * static_cast<std::size_t>(folds));
  all.slots.assign(all.rounds.size(), 1);
  all.done = is_extra ? all.count() - 1 : folds + doublings - 1;
  all.is_given = is_extra;
  if (is_extra) {
    all.rounds.front().to.push_back({me - 1});
    all.rounds.back().from.push_back({me - 1});
    return all;
  }
  if (is_paired) {
    all.rounds.front().from.push_back({me + 1});
    all.rounds.back().to.push_back({me + 1});
  }
  const int index = is_paired ? me / 2 : me - extras;
  for (int i = 0; i < doublings; ++i) {
    const int partner = member_at(index ^ (1 << i));
    Round& round = all.rounds[static_cast<std::size_t>(folds) + static_cast<std::size_t>(i)];
    round.to.push_back({partner});
    round.from.push_back({partner});
  }
  return all;
}

class ColumnAllReduce {
 public:
  ColumnAllReduce(const char* name, RoundsMaker make, const Placement& placement, int rank)
      : name_(name),
        make_(make),
        placement_(placement),
        me_(rank),
        local_(placement.ranks_on(placement.node_of(rank))),
        columns_(placement.ranks_on_largest_node()),
        size_(static_cast<int>(local_.size())) {
    for (int node = 0; node < placement.nodes(); ++node)
      most_carried_ = std::max(most_carried_, (columns_ + SizeOf(node) - 1) / SizeOf(node));
    for (int part = placement.local_of(rank); part < columns_; part += size_)
      carried_.push_back(CarriedOf(part));
    const Rounds& any = carried_.front().rounds;
    rounds_ = any.count();
    first_lag_ = columns_ > 1 ? 1 : 0;
    // A part's: sums before each round, what comes in each, and the result for the node.
    for (const int slots : any.slots) {
      arrivals_at_.push_back(rounds_ + arrivals_);
      arrivals_ += slots;
    }
  }

  /// Later lags come first, so that a sum may stay in its slot for two iterations: it is read by
  /// then when the step that writes it comes to the next chunk of the slot.
  Schedule Build() {
    builder_.SubSlots(SlotOf(most_carried_, 0)).Parts(columns_);
    if (size_ > 1) {
      builder_.Lag(first_lag_ + rounds_ + 1);
      GetResults();
    }
    for (int round = rounds_ - 1; round >= 0; --round) {
      builder_.Lag(first_lag_ + round + 1);
      Receive(round);
      if (round + 1 < rounds_) Send(round + 1);
    }
    builder_.Lag(first_lag_);
    if (size_ > 1) ReduceNode();
    Send(0);
    if (size_ > 1) {
      builder_.Lag(0);
      StageInputs();
    }
    return builder_.Build();
  }

  std::vector<WireClaim> Claims() const {
    std::vector<WireClaim> claims;
    for (const Carried& carried : carried_)
      for (const Round& round : carried.rounds.rounds)
        for (const Round::End& end : round.to)
          claims.push_back({carried.RankOf(end), carried.part});
    return claims;
  }

 private:
  // Those of the node come first, which there are none of where all nodes have one rank.
  static constexpr Mark kTaken = 1;   ///< The staged inputs of this chunk are reduced.
  static constexpr Mark kLanded = 2;  ///< The result is in the carrier's stage,
  static constexpr Mark kGot = 3;     ///< and has been read there.
  Mark SentMark(int round) const { return (columns_ > 1 ? 4 : 0) + 2 * round; }
  Mark ReadMark(int round) const { return SentMark(round) + 1; }

  /// A part that this rank carries.
  struct Carried {
    int part = 0;
    int number = 0;            ///< Among those of its carrier.
    std::vector<int> members;  ///< The carriers on all nodes, ascending.
    Rounds rounds;

    const Round& Of(int round) const { return rounds.rounds[static_cast<std::size_t>(round)]; }
    int RankOf(const Round::End& end) const {
      return members[static_cast<std::size_t>(end.member)];
    }
  };

  int SizeOf(int node) const { return static_cast<int>(placement_.ranks_on(node).size()); }
  int CarrierOn(int node, int part) const {
    return placement_.ranks_on(node)[static_cast<std::size_t>(part % SizeOf(node))];
  }

  Carried CarriedOf(int part) const {
    Carried carried{.part = part, .number = part / size_, .members = {}, .rounds = {}};
    for (int node = 0; node < placement_.nodes(); ++node)
      carried.members.push_back(CarrierOn(node, part));
    std::ranges::sort(carried.members);
    const auto me = std::ranges::lower_bound(carried.members, me_) - carried.members.begin();
    carried.rounds = make_(static_cast<int>(me), placement_.nodes());
    return carried;
  }

  /// Of the part that is `number` among those of its carrier: its sub-slot `at`. Inputs, one of
  /// each part, come before all of them.
  int SlotOf(int number, int at) const {
    const int inputs = columns_ > 1 ? columns_ : 0;
    return inputs + number * (rounds_ + arrivals_ + 1) + at;
  }
  Slice Partial(const Carried& carried, int round) const {
    return Stage(me_, SlotOf(carried.number, round));
  }
  int ArrivalSlot(int number, int round, const Round::End& end) const {
    return SlotOf(number, arrivals_at_[static_cast<std::size_t>(round)] + end.slot);
  }
  Slice Arrived(const Carried& carried, int round, const Round::End& end) const {
    return Stage(me_, ArrivalSlot(carried.number, round, end));
  }
  /// Where the result for the node lies.
  Slice Result(int carrier, int number) const {
    return Stage(carrier, SlotOf(number, rounds_ + arrivals_));
  }

  /// Whether a member's own input is what it holds before `round`.
  bool IsPlain(int rank, const Rounds& rounds, int round) const {
    return SizeOf(placement_.node_of(rank)) == 1 &&
           std::all_of(rounds.rounds.begin(), rounds.rounds.begin() + round,
                       [](const Round& one) { return one.from.empty(); });
  }
  /// What this rank holds before `round`.
  Operand Held(const Carried& carried, int round) const {
    if (round > carried.rounds.done)
      return {size_ > 1 ? Result(me_, carried.number) : Output(carried.part), -1};
    if (IsPlain(me_, carried.rounds, round)) return {Input(carried.part), me_};
    while (round > 0 && carried.Of(round - 1).from.empty()) --round;
    return {Partial(carried, round), -1};
  }
  Operand Arrival(const Carried& carried, int round, const Round::End& end) const {
    const int rank = carried.RankOf(end);
    const Rounds theirs = make_(end.member, placement_.nodes());
    return {Arrived(carried, round, end), IsPlain(rank, theirs, round) ? rank : -1};
  }

  /// Calls `each` with every rank that this one sends to in `round`, or gets from, once.
  template <typename Each>
  void ForEachPeer(int round, bool sends, Each&& each) const {
    std::vector<int> peers;
    for (const Carried& carried : carried_) {
      const Round& one = carried.Of(round);
      for (const Round::End& end : sends ? one.to : one.from) {
        const int peer = carried.RankOf(end);
        if (std::ranges::find(peers, peer) != peers.end()) continue;
        peers.push_back(peer);
        each(peer);
      }
    }
  }
  /// Calls `each` with every other rank of the node, its right neighbour first.
  template <typename Each>
  void ForEachMate(Each&& each) const {
    const int place = placement_.local_of(me_);
    for (int turn = 1; turn < size_; ++turn)
      each(local_[static_cast<std::size_t>((place + turn) % size_)]);
  }

  /// The parts that others of the node carry, each where its carrier takes it from.
  void StageInputs() {
    builder_.Staging();
    ForEachMate([&](int mate) {
      for (int part = placement_.local_of(mate); part < columns_; part += size_) {
        builder_.Wait(mate, kTaken, Input(part), kPreviousInSlot);
        builder_.Copy(Stage(me_, part), Input(part));
      }
    });
    builder_.Signal(kReady, kLongestBlock);
    builder_.Staging(false);
  }

  void ReduceNode() {
    for (const Carried& carried : carried_) {
      const Slice input = Input(carried.part);
      ForEachMate([&](int mate) { builder_.Wait(mate, kReady, input); });
      std::vector<Operand> operands;
      operands.reserve(local_.size());
      for (const int rank : local_) {
        const Slice staged = StagedInput(rank, carried.part, carried.part);
        operands.push_back({rank == me_ ? input : staged, rank});
      }
      builder_.Reduce(Partial(carried, 0), operands, input, /*partial=*/true);
    }
    builder_.Signal(kTaken, kLongestBlock, -kPreviousInSlot);
  }

  void Send(int round) {
    for (const Carried& carried : carried_) {
      const Slice extent = Input(carried.part);
      const Slice held = Held(carried, round).slice;
      for (const Round::End& end : carried.Of(round).to) {
        const int peer = carried.RankOf(end);
        builder_.Wait(peer, ReadMark(round), extent, kPreviousInSlot);
        const int number = carried.part / SizeOf(placement_.node_of(peer));
        const Slice there = Stage(peer, ArrivalSlot(number, round, end));
        builder_.MoveWhile(StepKind::kPut, there, held, extent);
      }
    }
    ForEachPeer(round, /*sends=*/true,
                [&](int peer) { builder_.Signal(SentMark(round), kLongestBlock, 0, peer); });
  }

  void Receive(int round) {
    for (const Carried& carried : carried_) {
      const Slice extent = Input(carried.part);
      for (const Round::End& end : carried.Of(round).from)
        builder_.Wait(carried.RankOf(end), SentMark(round), extent);
      if (round == carried.rounds.done && size_ > 1)
        ForEachMate([&](int mate) { builder_.Wait(mate, kGot, extent, kPreviousInSlot); });
      TakeIn(carried, round);
    }
    ForEachPeer(round, /*sends=*/false, [&](int peer) {
      builder_.Signal(ReadMark(round), kLongestBlock, -kPreviousInSlot, peer);
    });
    if (round + 1 < rounds_ || size_ == 1) return;
    builder_.Signal(kLanded, kLongestBlock);
    for (const Carried& carried : carried_)
      builder_.Copy(Output(carried.part), Result(me_, carried.number));
  }

  void TakeIn(const Carried& carried, int round) {
    const std::vector<Round::End>& from = carried.Of(round).from;
    if (from.empty()) return;
    const Slice extent = Input(carried.part);
    const bool is_done = round == carried.rounds.done;
    Slice to = Partial(carried, round + 1);
    if (is_done) to = Held(carried, round + 1).slice;
    if (carried.rounds.is_given) {
      builder_.MoveWhile(StepKind::kCopy, to, Arrived(carried, round, from.front()), extent);
      return;
    }
    std::vector<std::pair<int, Operand>> terms = {{me_, Held(carried, round)}};
    for (const Round::End& end : from)
      terms.emplace_back(carried.RankOf(end), Arrival(carried, round, end));
    std::ranges::sort(terms, {}, &std::pair<int, Operand>::first);
    std::vector<Operand> operands;
    operands.reserve(terms.size());
    for (const auto& [rank, operand] : terms) operands.push_back(operand);
    builder_.Reduce(to, operands, extent, /*partial=*/!is_done);
  }

  void GetResults() {
    ForEachMate([&](int mate) {
      for (int part = placement_.local_of(mate); part < columns_; part += size_) {
        builder_.Wait(mate, kLanded, Output(part));
        builder_.Get(Output(part), Result(mate, part / size_));
      }
    });
    builder_.Signal(kGot, kLongestBlock, -kPreviousInSlot);
  }

  const char* const name_;
  const RoundsMaker make_;
  const Placement& placement_;
  const int me_;
  const std::span<const int> local_;  ///< The ranks of this node.
  const int columns_;                 ///< Parts of the tensor.
  const int size_;
  int most_carried_ = 1;
  std::vector<Carried> carried_;
  int rounds_ = 0;
  int first_lag_ = 0;             ///< Of the first round's sends: before it inputs are staged.
  int arrivals_ = 0;              ///< Sub-slots for what comes in all rounds,
  std::vector<int> arrivals_at_;  ///< and where those of a round begin.
  ScheduleBuilder builder_{name_, Collective::kAllReduce, me_, placement_.ranks()};
};

}  // namespace

Schedule AllReduceColumnOneShot(const Placement& placement, const AlgorithmInput& input) {
  return ColumnAllReduce("column_one_shot", OneShot, placement, input.rank).Build();
}

std::vector<WireClaim> ClaimOfAllReduceColumnOneShot(const Placement& placement,
                                                     const AlgorithmInput& input) {
  return ColumnAllReduce("column_one_shot", OneShot, placement, input.rank).Claims();
}

Schedule AllReduceColumnDoubling(const Placement& placement, const AlgorithmInput& input) {
  return ColumnAllReduce("column_doubling", Doubling, placement, input.rank).Build();
}

std::vector<WireClaim> ClaimOfAllReduceColumnDoubling(const Placement& placement,
                                                      const AlgorithmInput& input) {
  return ColumnAllReduce("column_doubling", Doubling, placement, input.rank).Claims();
}

}  // namespace tidegate
