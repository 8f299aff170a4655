#include "collectives/algorithms/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "common/check.h"

namespace tidegate {
namespace {

std::size_t At(int index) { return static_cast<std::size_t>(index); }

struct Shape {
  int members;
  CircleOptions options;
};

/// Even and odd, with and without groups, also where turns share times and flights are cut short.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const auto& [members, groups] : {std::pair{1, 1},
                                        {2, 1},
                                        {7, 1},
                                        {12, 1},
                                        {4, 2},
                                        {6, 2},
                                        {6, 3},
                                        {9, 3},
                                        {10, 2},
                                        {24, 3},
                                        {35, 7},
                                        {48, 3},
                                        {64, 2}})
    for (const int most_times : {0, 3, 11})
      for (const int flight : {1, 8})
        shapes.push_back({members,
                          {.groups = groups,
                           .most_times = most_times,
                           .wire_flight = flight,
                           .node_flight = 2}});
  return shapes;
}

std::vector<Exchange> AllOf(const Shape& shape) {
  std::vector<Exchange> all;
  for (int me = 0; me < shape.members; ++me)
    all.push_back(CircleExchange(me, shape.members, shape.options));
  return all;
}

TEST(CircleExchangeTest, InEveryTurnEachMemberSendsToOneAndGetsFromOne) {
  for (const Shape& shape : Shapes()) {
    const std::vector<Exchange> all = AllOf(shape);
    for (int turn = 0; turn + 1 < shape.members; ++turn) {
      std::set<int> receivers;
      for (int me = 0; me < shape.members; ++me) {
        ASSERT_EQ(all[At(me)].steps.size(), At(shape.members - 1));
        const ExchangeStep& step = all[At(me)].steps[At(turn)];
        EXPECT_NE(step.to, me);
        EXPECT_TRUE(receivers.insert(step.to).second) << step.to << " in turn " << turn;
        const ExchangeStep& theirs = all[At(step.to)].steps[At(turn)];
        EXPECT_EQ(theirs.from, me);
        EXPECT_EQ(theirs.received, step.sent);
        EXPECT_EQ(theirs.time, step.time);
        EXPECT_EQ(theirs.offset, step.offset);
      }
    }
  }
}

TEST(CircleExchangeTest, EachBlockComesOnceAndIsPassedOnWhenItIsThere) {
  for (const Shape& shape : Shapes()) {
    for (int me = 0; me < shape.members; ++me) {
      const Exchange exchange = CircleExchange(me, shape.members, shape.options);
      std::vector<int> there_at(At(shape.members), -1);
      there_at[At(me)] = 0;
      int time = 0;
      for (const ExchangeStep& step : exchange.steps) {
        ASSERT_EQ(step.sent.size(), 1u);
        EXPECT_GE(step.time, time);
        time = step.time;
        const int there = there_at[At(step.sent[0])];
        EXPECT_GE(there, 0) << "block " << step.sent[0] << " of " << shape.members;
        EXPECT_LE(there, step.time);
        int& arrives_at = there_at[At(step.received[0])];
        EXPECT_EQ(arrives_at, -1) << "block " << step.received[0] << " comes twice";
        arrives_at = step.time + exchange.wire_flight;
      }
      EXPECT_EQ(std::ranges::count(there_at, -1), 0);
      EXPECT_EQ(exchange.times, exchange.steps.empty() ? 0 : time + 1);
    }
  }
}

TEST(CircleExchangeTest, LastHopsAreThoseThatNobodyPassesOn) {
  for (const Shape& shape : Shapes()) {
    const std::vector<Exchange> all = AllOf(shape);
    for (const Exchange& exchange : all) {
      for (const ExchangeStep& step : exchange.steps) {
        const std::vector<ExchangeStep>& theirs = all[At(step.to)].steps;
        const bool is_passed_on = std::ranges::any_of(
            theirs, [&](const ExchangeStep& next) { return next.sent == step.sent; });
        EXPECT_EQ(step.is_last_hop, !is_passed_on);
      }
    }
  }
}

TEST(CircleExchangeTest, BlocksEnterAGroupOnceAndAtMostTwoMembersLeaveItAtATime) {
  for (const Shape& shape : Shapes()) {
    const int group = shape.members / shape.options.groups;
    std::set<std::pair<int, int>> entered;  // Block, group.
    for (int turn = 0; turn + 1 < shape.members; ++turn) {
      std::vector<int> leaving(At(shape.options.groups));
      for (int me = 0; me < shape.members; ++me) {
        const ExchangeStep step = CircleExchange(me, shape.members, shape.options).steps[At(turn)];
        if (step.to / group == me / group) continue;
        ++leaving[At(me / group)];
        EXPECT_TRUE(entered.insert({step.sent[0], step.to / group}).second);
      }
      for (const int count : leaving) EXPECT_LE(count, group % 2 == 0 ? 2 : 1);
    }
    EXPECT_EQ(entered.size(), At(shape.members * (shape.options.groups - 1)));
  }
}

TEST(CircleExchangeTest, TakesTurnsTogetherUntilTheTimesSuffice) {
  EXPECT_EQ(CircleExchange(0, 128, {}).times, 127);
  EXPECT_EQ(CircleExchange(0, 128, {.most_times = 127}).times, 127);
  EXPECT_EQ(CircleExchange(0, 2048, {.most_times = 127}).times, 127);
  EXPECT_EQ(CircleExchange(0, 2048, {.groups = 64, .most_times = 127}).times, 127);
  // Half a round of 32 turns is the most at one time, whatever is asked for.
  EXPECT_EQ(CircleExchange(0, 2048, {.groups = 64, .most_times = 50}).times, 127);
  EXPECT_EQ(CircleExchange(0, 8192, {.groups = 256, .most_times = 127}).times, 511);
  // Of rounds of 31 turns none but the last two can be at one time.
  EXPECT_EQ(CircleExchange(0, 31 * 64, {.groups = 64, .most_times = 127}).times, 31 * 64 - 2);
}

TEST(CircleExchangeTest, FlightsEndBeforeWhatCameIsPassedOn) {
  EXPECT_EQ(CircleExchange(0, 64, {.wire_flight = 8}).wire_flight, 8);
  EXPECT_EQ(CircleExchange(0, 64, {.groups = 2, .wire_flight = 8}).wire_flight, 8);
  EXPECT_EQ(CircleExchange(0, 8, {.groups = 2, .wire_flight = 8}).wire_flight, 2);
  EXPECT_EQ(CircleExchange(0, 4, {.groups = 2, .wire_flight = 8}).wire_flight, 1);
}

TEST(CircleExchangeTest, RequiresGroupsOfOneSize) {
  EXPECT_THROW(static_cast<void>(CircleExchange(0, 6, {.groups = 4})), InvariantError);
}

}  // namespace
}  // namespace tidegate
