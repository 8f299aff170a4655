// Every interleaving of small programs over real gates: none deadlocks, none exceeds its budget.
//
// The model: each rank runs a program of calls and waits on one thread, with a gate and a serial
// lane for each group of its own. An operation begins when it is first in its lane and admitted,
// and may end on a rank once all ranks have begun it. Nothing else is assumed about time, but that
// a thread which waits for room loses patience only when nothing at all can happen.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
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

struct Setting {
  int groups = 1;
  Budget budget;
  Overflow overflow = Overflow::kQueue;
};

/// One rank on a gate, a transition at a time. Transitions by number: 0: its thread goes on; 1 + g:
/// the operation at the head of its lane g ends; the last one: its thread loses patience.
class Rank {
 public:
  struct Lane {
    std::shared_ptr<GateLine> line = std::make_shared<GateLine>();
    std::vector<std::shared_ptr<Ticket>> queue;
    std::size_t ended = 0;

    bool HeadHasBegun() const { return !queue.empty() && queue.front()->admitted(); }
  };

  Rank(const Setting& setting, const Program& program)
      : setting_(setting), program_(program), lanes_(static_cast<std::size_t>(setting.groups)) {
    gate_->SetBudget(setting.budget);
  }

  const std::vector<Lane>& lanes() const { return lanes_; }
  bool HasACallHeld() const { return held_ != nullptr; }
  bool IsOver() const {
    return next_ == program_.size() && held_ == nullptr &&
           std::all_of(lanes_.begin(), lanes_.end(),
                       [](const Lane& lane) { return lane.queue.empty(); });
  }
  bool ThreadMayGoOn() const {
    if (held_ != nullptr) return held_->admitted();
    if (awaited_ >= 0) return IsDone(awaited_);
    return next_ < program_.size();
  }

  void Do(int transition) {
    if (transition == 0) return GoOn();
    if (transition <= setting_.groups) return End(transition - 1);
    held_->Promote();
  }

  /// All that its future depends on.
  std::string Key() const {
    std::string key;
    key += static_cast<char>(next_);
    key += static_cast<char>(awaited_);
    for (const Lane& lane : lanes_) {
      key += static_cast<char>(lane.ended);
      for (const std::shared_ptr<Ticket>& ticket : lane.queue)
        key += ticket->admitted() ? 'a' : 'w';
      key += '/';
    }
    key += held_ == nullptr ? '-' : held_->admitted() ? 'A' : 'W';
    return key;
  }

  void CheckBudget() const {
    const Gate::Counters counters = gate_->counters();
    // Beyond the budget: the oldest of each lane but one, and what was promoted.
    const auto groups = static_cast<std::uint64_t>(setting_.groups);
    const std::uint64_t most = setting_.budget.ops.value_or(100) + groups - 1;
    EXPECT_LE(counters.high_water_ops, most + counters.promotions) << Key();
    const std::uint64_t largest = groups;
    EXPECT_LE(counters.high_water_bytes, std::max(setting_.budget.bytes.value_or(100), largest) +
                                             (largest - 1 + counters.promotions) * largest)
        << Key();
    for (const Lane& lane : lanes_) {
      if (lane.queue.empty()) continue;
      EXPECT_TRUE(lane.queue.front()->admitted()) << Key();
    }
  }

 private:
  bool IsDone(int issued) const {
    const auto [group, place] = issued_[static_cast<std::size_t>(issued)];
    return lanes_[static_cast<std::size_t>(group)].ended > place;
  }

  void End(int group) {
    Lane& lane = lanes_[static_cast<std::size_t>(group)];
    lane.queue.front()->Leave();
    lane.queue.erase(lane.queue.begin());
    ++lane.ended;
  }

  void Append(int group, std::shared_ptr<Ticket> ticket) {
    Lane& lane = lanes_[static_cast<std::size_t>(group)];
    issued_.emplace_back(group, lane.ended + lane.queue.size());
    lane.queue.push_back(std::move(ticket));
  }

  void GoOn() {
    if (held_ != nullptr) {
      Append(program_[next_].group, std::move(held_));
      held_ = nullptr;
      ++next_;
      return;
    }
    if (awaited_ >= 0) {
      awaited_ = -1;
      ++next_;
      return;
    }
    const Instruction& instruction = program_[next_];
    if (instruction.wait >= 0) {
      awaited_ = instruction.wait;
      const auto [group, place] = issued_[static_cast<std::size_t>(instruction.wait)];
      Lane& lane = lanes_[static_cast<std::size_t>(group)];
      if (place >= lane.ended) lane.queue[place - lane.ended]->Promote();
      return;
    }
    const auto group = static_cast<std::size_t>(instruction.group);
    // Groups' operations are of 1, 2 and 3 bytes.
    auto ticket = std::make_shared<Ticket>(gate_, lanes_[group].line, 1 + group, instruction.sync);
    if (!instruction.sync && setting_.overflow == Overflow::kBlock && !ticket->admitted()) {
      held_ = std::move(ticket);
      return;
    }
    Append(instruction.group, std::move(ticket));
    if (instruction.sync) {
      awaited_ = static_cast<int>(issued_.size()) - 1;
    } else {
      ++next_;
    }
  }

  static inline const StoppedClock kClock;
  const Setting& setting_;
  const Program& program_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>(kClock);
  std::vector<Lane> lanes_;
  std::size_t next_ = 0;
  std::shared_ptr<Ticket> held_;                     ///< Of a call that waits for room.
  std::vector<std::pair<int, std::size_t>> issued_;  ///< Group and place in its lane.
  int awaited_ = -1;                                 ///< Of issued_.
};

/// The states of a rank, by number from 0, and what leads from one to another. Ranks share nothing
/// but the order in which operations may end, so a rank's next state follows from its own and the
/// transition. Gates cannot be copied: each transition from each state is made once, by a rank that
/// gets there from the start.
class RankStates {
 public:
  struct Lane {
    std::size_t ended = 0;
    bool head_has_begun = false;
  };
  struct State {
    bool thread_may_go_on = false;
    bool has_a_call_held = false;
    bool is_over = false;
    std::vector<Lane> lanes;
    std::vector<int> path;  ///< Transitions that lead here.
    std::vector<int> next;  ///< By transition; negative as long as nobody asked.
  };

  RankStates(const Setting& setting, Program program)
      : setting_(setting), program_(std::move(program)) {
    NumberOf({});
  }
  RankStates(const RankStates&) = delete;
  RankStates& operator=(const RankStates&) = delete;

  const Setting& setting() const { return setting_; }
  const State& At(int state) const { return states_[static_cast<std::size_t>(state)]; }

  int Next(int state, int transition) {
    const auto from = static_cast<std::size_t>(state);
    const auto by = static_cast<std::size_t>(transition);
    if (states_[from].next[by] < 0) {
      std::vector<int> path = states_[from].path;
      path.push_back(transition);
      const int to = NumberOf(std::move(path));
      states_[from].next[by] = to;
    }
    return states_[from].next[by];
  }

 private:
  int NumberOf(std::vector<int> path) {
    Rank rank(setting_, program_);
    for (const int transition : path) rank.Do(transition);
    rank.CheckBudget();
    const auto [known, is_new] = numbers_.try_emplace(rank.Key(), static_cast<int>(states_.size()));
    if (is_new) {
      State& state = states_.emplace_back();
      state.thread_may_go_on = rank.ThreadMayGoOn();
      state.has_a_call_held = rank.HasACallHeld();
      state.is_over = rank.IsOver();
      for (const Rank::Lane& lane : rank.lanes())
        state.lanes.push_back({.ended = lane.ended, .head_has_begun = lane.HeadHasBegun()});
      state.path = std::move(path);
      state.next.assign(static_cast<std::size_t>(setting_.groups) + 2, -1);
    }
    return known->second;
  }

  const Setting setting_;
  const Program program_;
  std::vector<State> states_;
  std::map<std::string, int> numbers_;  ///< By Rank::Key().
};

/// All ranks together: the state of each.
class World {
 public:
  /// REQUIRES: `ranks` of one setting.
  explicit World(std::vector<RankStates*> ranks)
      : ranks_(std::move(ranks)), groups_(ranks_[0]->setting().groups), states_(ranks_.size(), 0) {}

  using States = std::vector<int>;  ///< By rank.
  const States& states() const { return states_; }
  void set_states(States states) { states_ = std::move(states); }

  struct Transition {
    std::size_t rank = 0;
    int number = 0;  ///< See Rank.
  };
  std::vector<Transition> Enabled() const {
    std::vector<Transition> enabled;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (Of(rank).thread_may_go_on) enabled.push_back({rank, 0});
      for (int group = 0; group < groups_; ++group)
        if (MayEnd(rank, static_cast<std::size_t>(group))) enabled.push_back({rank, 1 + group});
    }
    if (!enabled.empty()) return enabled;
    // Nothing can happen any more but this.
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (Of(rank).has_a_call_held) enabled.push_back({rank, 1 + groups_});
    return enabled;
  }
  States After(const Transition& transition) const {
    States states = states_;
    int& state = states[transition.rank];
    state = ranks_[transition.rank]->Next(state, transition.number);
    return states;
  }
  bool IsOver() const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (!Of(rank).is_over) return false;
    return true;
  }
  /// Whether a thread will lose its patience. REQUIRES: `enabled` is Enabled().
  bool IsPatienceNeeded(const std::vector<Transition>& enabled) const {
    return !enabled.empty() && enabled[0].number > groups_;
  }

 private:
  const RankStates::State& Of(std::size_t rank) const { return ranks_[rank]->At(states_[rank]); }

  bool MayEnd(std::size_t rank, std::size_t group) const {
    const RankStates::Lane& mine = Of(rank).lanes[group];
    if (!mine.head_has_begun) return false;
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      const RankStates::Lane& theirs = Of(other).lanes[group];
      if (theirs.ended < mine.ended) return false;
      if (theirs.ended == mine.ended && !theirs.head_has_begun) return false;
    }
    return true;
  }

  const std::vector<RankStates*> ranks_;
  const int groups_;
  States states_;
};

struct Found {
  int ends = 0;
  int deadlocks = 0;
  int patience_lost = 0;  ///< States in which somebody does.
};

/// All executions, each state once.
Found Explore(std::vector<RankStates*> ranks) {
  Found found;
  World world(std::move(ranks));
  std::set<World::States> seen = {world.states()};
  std::vector<World::States> left = {world.states()};
  while (!left.empty()) {
    world.set_states(std::move(left.back()));
    left.pop_back();
    const std::vector<World::Transition> enabled = world.Enabled();
    if (world.IsPatienceNeeded(enabled)) ++found.patience_lost;
    if (enabled.empty()) ++(world.IsOver() ? found.ends : found.deadlocks);
    for (const World::Transition& transition : enabled)
      if (World::States states = world.After(transition); seen.insert(states).second)
        left.push_back(std::move(states));
  }
  return found;
}

/// Of ranks that run `programs`.
Found Explore(const Setting& setting, const std::vector<Program>& programs) {
  std::deque<RankStates> ranks;
  std::vector<RankStates*> pointers;
  for (const Program& program : programs) pointers.push_back(&ranks.emplace_back(setting, program));
  return Explore(std::move(pointers));
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
  const Setting setting = {.groups = 1 + *std::max_element(groups.begin(), groups.end()),
                           .budget = budget,
                           .overflow = overflow};
  int patience_lost = 0;
  for (const Ending ending : {Ending::kInOrder, Ending::kReversed}) {
    std::deque<RankStates> ways;
    for (const std::vector<int>& order : orders) ways.emplace_back(setting, Calls(order, ending));
    for (std::size_t number = 0; number < combinations; number += stride) {
      // Which rank is which makes no difference, nor do the names of groups.
      std::vector<RankStates*> chosen = {&ways[0]};
      std::size_t rest = number;
      for (int rank = 1; rank < ranks; ++rank, rest /= orders.size())
        chosen.push_back(&ways[rest % orders.size()]);
      const Found found = Explore(std::move(chosen));
      EXPECT_EQ(found.deadlocks, 0) << "combination " << number;
      EXPECT_GT(found.ends, 0);
      if (found.patience_lost > 0) ++patience_lost;
    }
  }
  return patience_lost;
}

std::size_t Stride(std::size_t thorough, std::size_t quick) {
  if (testing::TestsAll()) return thorough;
  return testing::kIsSlowBuild ? quick * 2 : quick;
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
      const Found found = Explore({.groups = 3, .budget = budget, .overflow = Overflow::kBlock},
                                  std::vector<Program>(2, Calls(order, Ending::kReversed)));
      EXPECT_EQ(found.deadlocks, 0);
      EXPECT_EQ(found.patience_lost, 0);
      EXPECT_GT(found.ends, 0);
    }
  }
}

TEST(GateModelTest, SyncCallsBehindQueuedOnes) {
  for (const Overflow overflow : {Overflow::kQueue, Overflow::kBlock}) {
    const Setting setting = {.groups = 2, .budget = {.ops = 1, .bytes = {}}, .overflow = overflow};
    const Program program = {{.group = 0},
                             {.group = 0},
                             {.group = 1},
                             {.group = 0, .sync = true},
                             {.group = 1, .sync = true},
                             {.wait = 1},
                             {.wait = 0},
                             {.wait = 2}};
    for (int ranks = 1; ranks <= 3; ++ranks) {
      const Found found =
          Explore(setting, std::vector<Program>(static_cast<std::size_t>(ranks), program));
      EXPECT_EQ(found.deadlocks, 0);
      EXPECT_GT(found.ends, 0);
      EXPECT_EQ(found.patience_lost, 0);
    }
  }
}

// That the model sees deadlocks at all: sync calls in opposite orders are one, gate or none.
TEST(GateModelTest, AWrongProgramDeadlocks) {
  const Found found = Explore({.groups = 2, .budget = {}, .overflow = Overflow::kQueue},
                              {{{.group = 0, .sync = true}, {.group = 1, .sync = true}},
                               {{.group = 1, .sync = true}, {.group = 0, .sync = true}}});
  EXPECT_GT(found.deadlocks, 0);
}

}  // namespace
}  // namespace tidegate
