#include "collectives/simulator/fair_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>

namespace tidegate {
namespace {

using Uses = std::vector<Use>;

double RateOf(FairShare& share, int flow) {
  std::vector<int> changed;
  share.Solve(&changed);
  return share.rate(flow);
}

TEST(FairShareTest, AFlowAloneTakesItsSlowestResource) {
  const Uses uses = {{0, 1}, {1, 1}};
  FairShare share({10, 4});
  EXPECT_EQ(RateOf(share, share.Add(uses)), 4);
}

TEST(FairShareTest, AStripedFlowTakesTheSumOfItsResources) {
  const Uses uses = {{0, 0.75}, {1, 0.25}};
  FairShare share({6, 2});
  EXPECT_EQ(RateOf(share, share.Add(uses)), 8);
}

TEST(FairShareTest, WhatABottleneckedFlowLeavesGoesToTheOthers) {
  // The classic example: two resources, a flow over both, and one more on each.
  const Uses both = {{0, 1}, {1, 1}};
  const Uses first = {{0, 1}};
  const Uses second = {{1, 1}};
  FairShare share({10, 4});
  const int a = share.Add(both);
  const int b = share.Add(first);
  const int c = share.Add(second);
  EXPECT_EQ(RateOf(share, a), 2);
  EXPECT_EQ(share.rate(b), 8);
  EXPECT_EQ(share.rate(c), 2);
}

TEST(FairShareTest, AFlowThatEndsGivesItsPartBack) {
  const Uses uses = {{0, 1}};
  FairShare share({9});
  const int a = share.Add(uses);
  const int b = share.Add(uses);
  EXPECT_EQ(RateOf(share, a), 4.5);
  share.Remove(b);
  EXPECT_EQ(RateOf(share, a), 9);
}

TEST(FairShareTest, AChangeReachesFlowsThatShareNothingWithIt) {
  // a and b on resource 0, b and c on 1, c and d on 2: d's end changes c, hence b, hence a.
  const Uses a_uses = {{0, 1}};
  const Uses b_uses = {{0, 1}, {1, 1}};
  const Uses c_uses = {{1, 1}, {2, 1}};
  const Uses d_uses = {{2, 1}};
  FairShare share({10, 8, 4});
  const int a = share.Add(a_uses);
  const int b = share.Add(b_uses);
  const int c = share.Add(c_uses);
  const int d = share.Add(d_uses);
  EXPECT_EQ(RateOf(share, d), 2);
  EXPECT_EQ(share.rate(c), 2);
  EXPECT_EQ(share.rate(b), 5);
  EXPECT_EQ(share.rate(a), 5);
  share.Remove(d);
  EXPECT_EQ(RateOf(share, c), 4);
  EXPECT_EQ(share.rate(b), 4);
  EXPECT_EQ(share.rate(a), 6);
}

TEST(FairShareTest, OnlyChangedRatesAreReported) {
  const Uses first = {{0, 1}};
  const Uses second = {{1, 1}};
  FairShare share({1, 1});
  const int a = share.Add(first);
  std::vector<int> changed;
  share.Solve(&changed);
  EXPECT_EQ(changed, std::vector<int>{a});
  changed.clear();
  const int b = share.Add(second);
  share.Solve(&changed);
  EXPECT_EQ(changed, std::vector<int>{b});
}

/// Every flow has a resource that is used up and on which none is faster; none is used beyond.
void ExpectMaxMinFair(FairShare& share, const std::vector<double>& capacities,
                      const std::map<int, std::unique_ptr<Uses>>& flows, int step) {
  std::vector<double> used(capacities.size(), 0);
  std::vector<double> fastest(capacities.size(), 0);
  for (const auto& [flow, uses] : flows) {
    for (const Use& use : *uses) {
      const auto resource = static_cast<std::size_t>(use.resource);
      used[resource] += use.weight * share.rate(flow);
      fastest[resource] = std::max(fastest[resource], share.rate(flow));
    }
  }
  for (std::size_t i = 0; i < capacities.size(); ++i)
    ASSERT_LE(used[i], capacities[i] * (1 + 1e-9)) << "step " << step;
  for (const auto& [flow, uses] : flows) {
    const bool has_bottleneck = std::any_of(uses->begin(), uses->end(), [&](const Use& use) {
      const auto resource = static_cast<std::size_t>(use.resource);
      return used[resource] >= capacities[resource] * (1 - 1e-9) &&
             share.rate(flow) >= fastest[resource] * (1 - 1e-9);
    });
    ASSERT_TRUE(has_bottleneck) << "flow " << flow << " in step " << step;
  }
}

TEST(FairShareTest, EveryFlowHasABottleneckAfterAnyChange) {
  std::mt19937 random(3);
  const auto pick = [&](int count) {
    return std::uniform_int_distribution<int>(0, count - 1)(random);
  };
  std::vector<double> capacities;
  for (int i = 0; i < 30; ++i) capacities.push_back(1 + pick(8));
  FairShare share(capacities);
  std::map<int, std::unique_ptr<Uses>> flows;
  std::vector<int> changed;
  for (int step = 0; step < 3000; ++step) {
    for (int change = pick(4); change >= 0; --change) {
      if (flows.size() > 60 || (!flows.empty() && pick(5) < 2)) {
        const auto victim = std::next(flows.begin(), pick(static_cast<int>(flows.size())));
        share.Remove(victim->first);
        flows.erase(victim);
        continue;
      }
      auto uses = std::make_unique<Uses>();
      for (int resource = pick(8); resource < 30; resource += 1 + pick(12))
        uses->push_back({resource, 0.25 * (1 + pick(6))});
      const int flow = share.Add(*uses);
      flows[flow] = std::move(uses);
    }
    share.Solve(&changed);
    ExpectMaxMinFair(share, capacities, flows, step);
  }
}

}  // namespace
}  // namespace tidegate
