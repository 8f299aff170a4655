// Every interleaving of small programs over real gates: none deadlocks, none exceeds its budget.
//
// The model: each rank runs a program of calls and waits on one thread, with a gate and a serial
// lane for each group of its own. An operation begins when it is first in its lane and admitted,
// and may end on a rank once all ranks have begun it. Nothing else is assumed about time, but that
// a thread which waits for room loses patience only when nothing at all can happen.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collectives/admission/gate.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

class StoppedClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(std::chrono::seconds(1)); }
};

/// A call of an all-gather in `group`, or the wait for the one that was issued `wait`-th.
struct Instruction {
  int group = -1;
  bool sync = false;
  int wait = -1;
};
using Program = std::vector<Instruction>;

struct Case {
  std::vector<Program> programs;  ///< By rank.
  int groups = 1;
  Budget budget;
  Overflow overflow = Overflow::kQueue;
};

/// One execution of a case, a transition at a time.
class World {
 public:
  explicit World(const Case& the_case) : case_(the_case) {
    for (const Program& program : case_.programs) ranks_.emplace_back(case_, program);
  }

  /// Transitions by number: of rank r, 0: its thread goes on; 1 + g: the operation at the head of
  /// its lane g ends; the last one: its thread loses patience.
  std::vector<int> Enabled() const {
    std::vector<int> enabled;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ThreadMayGoOn(ranks_[rank])) enabled.push_back(Number(rank, 0));
      for (int group = 0; group < case_.groups; ++group)
        if (MayEnd(rank, group)) enabled.push_back(Number(rank, 1 + group));
    }
    if (!enabled.empty()) return enabled;
    // Nothing can happen any more but this.
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (ranks_[rank].held != nullptr) enabled.push_back(Number(rank, 1 + case_.groups));
    return enabled;
  }

  void Do(int transition) {
    const int kinds = case_.groups + 2;
    Rank& rank = ranks_[static_cast<std::size_t>(transition / kinds)];
    const int kind = transition % kinds;
    if (kind == 0) return GoOn(rank);
    if (kind <= case_.groups) return End(rank, kind - 1);
    rank.held->Promote();
  }

  bool IsOver() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.next == rank.program->size() && rank.unfinished == 0 && rank.held == nullptr;
    });
  }

  /// All that the future depends on.
  std::string Key() const {
    std::string key;
    for (const Rank& rank : ranks_) {
      key += static_cast<char>(rank.next);
      key += static_cast<char>(rank.awaited);
      for (const Lane& lane : rank.lanes) {
        key += static_cast<char>(lane.ended);
        for (const std::shared_ptr<Ticket>& ticket : lane.queue)
          key += ticket->admitted() ? 'a' : 'w';
        key += '/';
      }
      key += rank.held == nullptr ? '-' : rank.held->admitted() ? 'A' : 'W';
    }
    return key;
  }

  void CheckBudget() const {
    for (const Rank& rank : ranks_) {
      const Gate::Counters counters = rank.gate->counters();
      // Beyond the budget: the oldest of each lane but one, and what was promoted.
      const std::uint64_t most =
          case_.budget.ops.value_or(100) + static_cast<std::uint64_t>(case_.groups) - 1;
      EXPECT_LE(counters.high_water_ops, most + counters.promotions) << Key();
      const auto largest = static_cast<std::uint64_t>(case_.groups);
      EXPECT_LE(counters.high_water_bytes, std::max(case_.budget.bytes.value_or(100), largest) +
                                               (largest - 1 + counters.promotions) * largest)
          << Key();
      for (const Lane& lane : rank.lanes) {
        if (lane.queue.empty()) continue;
        EXPECT_TRUE(lane.queue.front()->admitted()) << Key();
      }
    }
  }

  /// Whether a thread will lose its patience. REQUIRES: `enabled` is Enabled().
  bool IsPatienceNeeded(const std::vector<int>& enabled) const {
    return !enabled.empty() && enabled[0] % (case_.groups + 2) > case_.groups;
  }

 private:
  struct Lane {
    std::shared_ptr<GateLine> line = std::make_shared<GateLine>();
    std::deque<std::shared_ptr<Ticket>> queue;
    std::size_t ended = 0;
  };
  struct Rank {
    Rank(const Case& the_case, const Program& its_program)
        : gate(std::make_shared<Gate>(kClock)),
          lanes(static_cast<std::size_t>(the_case.groups)),
          program(&its_program) {
      gate->SetBudget(the_case.budget);
    }
    static inline const StoppedClock kClock;
    std::shared_ptr<Gate> gate;
    std::vector<Lane> lanes;
    const Program* program = nullptr;
    std::size_t next = 0;
    std::shared_ptr<Ticket> held;  ///< Of a call that waits for room.
    int unfinished = 0;
    std::vector<std::pair<int, std::size_t>> issued;  ///< Group and place in its lane.
    int awaited = -1;                                 ///< Of issued.
  };

  int Number(std::size_t rank, int kind) const {
    return static_cast<int>(rank) * (case_.groups + 2) + kind;
  }

  static bool IsDone(const Rank& rank, int issued) {
    const auto [group, place] = rank.issued[static_cast<std::size_t>(issued)];
    return rank.lanes[static_cast<std::size_t>(group)].ended > place;
  }

  bool ThreadMayGoOn(const Rank& rank) const {
    if (rank.held != nullptr) return rank.held->admitted();
    if (rank.awaited >= 0) return IsDone(rank, rank.awaited);
    return rank.next < rank.program->size();
  }

  bool MayEnd(std::size_t rank, int group) const {
    const auto lane_of = [&](const Rank& one) -> const Lane& {
      return one.lanes[static_cast<std::size_t>(group)];
    };
    const Lane& mine = lane_of(ranks_[rank]);
    if (mine.queue.empty() || !mine.queue.front()->admitted()) return false;
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& other) {
      const Lane& theirs = lane_of(other);
      if (theirs.ended != mine.ended) return theirs.ended > mine.ended;
      return !theirs.queue.empty() && theirs.queue.front()->admitted();
    });
  }

  void End(Rank& rank, int group) {
    Lane& lane = rank.lanes[static_cast<std::size_t>(group)];
    lane.queue.front()->Leave();
    lane.queue.pop_front();
    ++lane.ended;
    --rank.unfinished;
  }

  void Append(Rank& rank, int group, std::shared_ptr<Ticket> ticket) {
    Lane& lane = rank.lanes[static_cast<std::size_t>(group)];
    rank.issued.emplace_back(group, lane.ended + lane.queue.size());
    lane.queue.push_back(std::move(ticket));
    ++rank.unfinished;
  }

  void GoOn(Rank& rank) {
    if (rank.held != nullptr) {
      Append(rank, (*rank.program)[rank.next].group, std::move(rank.held));
      rank.held = nullptr;
      ++rank.next;
      return;
    }
    if (rank.awaited >= 0) {
      rank.awaited = -1;
      ++rank.next;
      return;
    }
    const Instruction& instruction = (*rank.program)[rank.next];
    if (instruction.wait >= 0) {
      rank.awaited = instruction.wait;
      const auto [group, place] = rank.issued[static_cast<std::size_t>(instruction.wait)];
      Lane& lane = rank.lanes[static_cast<std::size_t>(group)];
      if (place >= lane.ended) lane.queue[place - lane.ended]->Promote();
      return;
    }
    const auto group = static_cast<std::size_t>(instruction.group);
    // Groups' operations are of 1, 2 and 3 bytes.
    auto ticket =
        std::make_shared<Ticket>(rank.gate, rank.lanes[group].line, 1 + group, instruction.sync);
    if (!instruction.sync && case_.overflow == Overflow::kBlock && !ticket->admitted()) {
      rank.held = std::move(ticket);
      return;
    }
    Append(rank, instruction.group, std::move(ticket));
    if (instruction.sync) {
      rank.awaited = static_cast<int>(rank.issued.size()) - 1;
    } else {
      ++rank.next;
    }
  }

  const Case& case_;
  std::vector<Rank> ranks_;
};

struct Found {
  int ends = 0;
  int deadlocks = 0;
  int patience_lost = 0;  ///< States in which somebody does.
};

/// All executions, each state once. Gates cannot be copied: every state is reached from the start.
Found Explore(const Case& the_case) {
  Found found;
  std::set<std::string> seen;
  std::vector<std::vector<int>> paths = {{}};
  while (!paths.empty()) {
    const std::vector<int> path = std::move(paths.back());
    paths.pop_back();
    World world(the_case);
    for (const int transition : path) world.Do(transition);
    if (!seen.insert(world.Key()).second) continue;
    world.CheckBudget();
    const std::vector<int> enabled = world.Enabled();
    if (world.IsPatienceNeeded(enabled)) ++found.patience_lost;
    if (enabled.empty()) {
      ++(world.IsOver() ? found.ends : found.deadlocks);
      continue;
    }
    for (const int transition : enabled) {
      paths.push_back(path);
      paths.back().push_back(transition);
    }
  }
  return found;
}

enum class Ending { kInOrder, kReversed };

/// Async calls in the order of `groups`, then the waits for all of them.
Program Calls(const std::vector<int>& groups, Ending ending) {
  Program program;
  for (const int group : groups) program.push_back({.group = group});
  const int count = static_cast<int>(groups.size());
  for (int i = 0; i < count; ++i)
    program.push_back({.wait = ending == Ending::kInOrder ? i : count - 1 - i});
  return program;
}

std::vector<std::vector<int>> Orders(std::vector<int> groups) {
  std::vector<std::vector<int>> orders;
  std::sort(groups.begin(), groups.end());
  do orders.push_back(groups);
  while (std::next_permutation(groups.begin(), groups.end()));
  return orders;
}

/// Runs all combinations of the orders in which `ranks` ranks may issue `groups`, or every
/// `stride`-th of them. Returns in how many cases some thread lost its patience.
int ExploreOrders(int ranks, const std::vector<int>& groups, const Budget& budget,
                  Overflow overflow, std::size_t stride) {
  const std::vector<std::vector<int>> orders = Orders(groups);
  std::size_t combinations = 1;
  for (int rank = 1; rank < ranks; ++rank) combinations *= orders.size();
  int patience_lost = 0;
  for (std::size_t number = 0; number < combinations; number += stride) {
    for (const Ending ending : {Ending::kInOrder, Ending::kReversed}) {
      Case the_case;
      the_case.groups = 1 + *std::max_element(groups.begin(), groups.end());
      the_case.budget = budget;
      the_case.overflow = overflow;
      // Which rank is which makes no difference, nor do the names of groups.
      the_case.programs.push_back(Calls(orders[0], ending));
      std::size_t rest = number;
      for (int rank = 1; rank < ranks; ++rank, rest /= orders.size())
        the_case.programs.push_back(Calls(orders[rest % orders.size()], ending));
      const Found found = Explore(the_case);
      EXPECT_EQ(found.deadlocks, 0) << "combination " << number;
      EXPECT_GT(found.ends, 0);
      if (found.patience_lost > 0) ++patience_lost;
    }
  }
  return patience_lost;
}

std::size_t Stride(std::size_t thorough, std::size_t quick) {
  if (testing::TestsAll()) return thorough;
  return testing::kIsSlowBuild ? quick * 25 : quick;
}

TEST(GateModelTest, QueuesNeverDeadlock) {
  for (const Budget& budget : {Budget{.ops = 1, .bytes = {}}, Budget{.ops = {}, .bytes = 1},
                               Budget{.ops = 2, .bytes = 3}}) {
    ExploreOrders(2, {0, 0, 1, 1}, budget, Overflow::kQueue, Stride(1, 2));
    ExploreOrders(2, {0, 0, 1, 2}, budget, Overflow::kQueue, Stride(1, 5));
    ExploreOrders(3, {0, 0, 1}, budget, Overflow::kQueue, Stride(1, 4));
    ExploreOrders(3, {0, 1, 2}, budget, Overflow::kQueue, Stride(1, 13));
  }
}

TEST(GateModelTest, ThreadsThatWaitForRoomNeverDeadlock) {
  for (const Budget& budget : {Budget{.ops = 1, .bytes = {}}, Budget{.ops = {}, .bytes = 1}}) {
    // The same order everywhere: nobody ever needs patience.
    EXPECT_EQ(ExploreOrders(2, {0, 0, 0}, budget, Overflow::kBlock, 1), 0);
    EXPECT_EQ(ExploreOrders(3, {0, 0, 0}, budget, Overflow::kBlock, 1), 0);
    // Two groups in opposite orders, the last combination: without it this would not end.
    EXPECT_GT(ExploreOrders(2, {0, 0, 1, 1}, budget, Overflow::kBlock, 5), 0);
    ExploreOrders(2, {0, 0, 1, 1}, budget, Overflow::kBlock, Stride(1, 3));
    ExploreOrders(2, {0, 0, 1, 2}, budget, Overflow::kBlock, Stride(1, 5));
    ExploreOrders(3, {0, 0, 1}, budget, Overflow::kBlock, Stride(1, 4));
    ExploreOrders(3, {0, 1, 2}, budget, Overflow::kBlock, Stride(1, 13));
  }
}

// As training loops do: nobody ever needs patience, however ranks run ahead of each other.
TEST(GateModelTest, TheSameOrderOnAllRanksNeedsNoPatience) {
  for (const Budget& budget : {Budget{.ops = 1, .bytes = {}}, Budget{.ops = {}, .bytes = 2}}) {
    const std::vector<std::vector<int>> orders = Orders({0, 0, 1, 2});
    for (std::size_t number = 0; number < orders.size(); number += Stride(1, 1)) {
      const std::vector<int>& order = orders[number];
      Case the_case;
      the_case.groups = 3;
      the_case.budget = budget;
      the_case.overflow = Overflow::kBlock;
      the_case.programs.assign(2, Calls(order, Ending::kReversed));
      const Found found = Explore(the_case);
      EXPECT_EQ(found.deadlocks, 0);
      EXPECT_EQ(found.patience_lost, 0);
      EXPECT_GT(found.ends, 0);
    }
  }
}

TEST(GateModelTest, SyncCallsBehindQueuedOnes) {
  for (const Overflow overflow : {Overflow::kQueue, Overflow::kBlock}) {
    Case the_case;
    the_case.groups = 2;
    the_case.budget = {.ops = 1, .bytes = {}};
    the_case.overflow = overflow;
    const Program program = {{.group = 0},
                             {.group = 0},
                             {.group = 1},
                             {.group = 0, .sync = true},
                             {.group = 1, .sync = true},
                             {.wait = 1},
                             {.wait = 0},
                             {.wait = 2}};
    for (int ranks = 1; ranks <= 3; ++ranks) {
      the_case.programs.assign(static_cast<std::size_t>(ranks), program);
      const Found found = Explore(the_case);
      EXPECT_EQ(found.deadlocks, 0);
      EXPECT_GT(found.ends, 0);
      EXPECT_EQ(found.patience_lost, 0);
    }
  }
}

// That the model sees deadlocks at all: sync calls in opposite orders are one, gate or none.
TEST(GateModelTest, AWrongProgramDeadlocks) {
  Case the_case;
  the_case.groups = 2;
  the_case.programs = {{{.group = 0, .sync = true}, {.group = 1, .sync = true}},
                       {{.group = 1, .sync = true}, {.group = 0, .sync = true}}};
  EXPECT_GT(Explore(the_case).deadlocks, 0);
}

}  // namespace
}  // namespace tidegate
