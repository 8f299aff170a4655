#include "collectives/simulator/binding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace tidegate {
namespace {

using Uses = std::vector<Use>;

/// Those of the resources that have to stay on these paths.
std::vector<std::int32_t> Binding(const std::vector<double>& capacities,
                                  const std::vector<std::uint8_t>& classes,
                                  const std::vector<Uses>& paths) {
  BindingResources binding(capacities, classes);
  for (const Uses& path : paths) binding.Include(path);
  binding.Decide();
  std::vector<std::int32_t> stay;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(capacities.size()); ++id)
    if (binding.Binds(id)) stay.push_back(id);
  return stay;
}

using Ids = std::vector<std::int32_t>;

TEST(BindingResourcesTest, OfStripesOverEqualsTheFirstStays) {
  EXPECT_EQ(Binding({5, 5, 5}, {0, 0, 0},
                    {{{0, 0.25}, {1, 0.25}, {2, 0.25}}, {{0, 0.5}, {1, 0.5}, {2, 0.5}}}),
            Ids{0});
}

TEST(BindingResourcesTest, OfWhatAllPathsShareTheSlowestStays) {
  EXPECT_EQ(Binding({9, 3, 5}, {0, 1, 2}, {{{0, 1}, {1, 1}, {2, 1}}}), Ids{1});
  EXPECT_EQ(Binding({9, 3, 5}, {0, 1, 2}, {{{0, 4}, {1, 1}, {2, 1}}}), Ids{0});
}

TEST(BindingResourcesTest, WhatOnePathUsesWithoutTheOthersStays) {
  EXPECT_EQ(Binding({9, 3}, {0, 0}, {{{0, 1}, {1, 1}}, {{0, 1}}}), (Ids{0, 1}));
}

TEST(BindingResourcesTest, StripesOfOtherPartsOnEachPathStay) {
  EXPECT_EQ(Binding({5, 5}, {0, 0}, {{{0, 0.25}, {1, 0.75}}, {{0, 0.75}, {1, 0.25}}}), (Ids{0, 1}));
}

TEST(BindingResourcesTest, AnUplinkGoesUnlessTheNicsBelowItAreFasterTogether) {
  // NICs 0, 1 and 2 below it send to each of 3, 4 and 5.
  std::vector<Uses> paths;
  for (const int from : {0, 1, 2})
    for (const int to : {3, 4, 5}) paths.push_back({{from, 1}, {to, 1}, {6, 1}});
  const std::vector<std::uint8_t> classes = {0, 0, 0, 1, 1, 1, 2};
  EXPECT_EQ(Binding({4, 4, 4, 5, 5, 5, 12}, classes, paths), (Ids{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Binding({4, 4, 4, 5, 5, 5, 11}, classes, paths), (Ids{0, 1, 2, 3, 4, 5, 6}));
}

TEST(BindingResourcesTest, ALaterPathBringsBackWhatItNeeds) {
  BindingResources binding(std::vector<double>{5, 5}, std::vector<std::uint8_t>{0, 0});
  binding.Include(Uses{{0, 1}, {1, 1}});
  EXPECT_TRUE(binding.Decide());
  EXPECT_FALSE(binding.Binds(1));
  binding.Include(Uses{{0, 1}, {1, 1}});
  EXPECT_FALSE(binding.Decide());
  binding.Include(Uses{{1, 1}});
  EXPECT_TRUE(binding.Decide());
  EXPECT_TRUE(binding.Binds(1));
}

/// A cluster of its kind: nodes of NICs that messages are striped over, below switches.
struct Cluster {
  std::vector<double> capacities;
  std::vector<std::uint8_t> classes;
  std::vector<Uses> paths;
};

Cluster RandomCluster(std::mt19937& random) {
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  const int nodes = pick(2, 9);
  const int nics = pick(1, 4);
  const int leaf = pick(1, 4);
  Cluster cluster;
  const auto add = [&](int of_class, double capacity) {
    cluster.capacities.push_back(capacity);
    cluster.classes.push_back(static_cast<std::uint8_t>(of_class));
    return static_cast<std::int32_t>(cluster.capacities.size()) - 1;
  };
  const double slow = pick(0, 2) == 0 ? 0.5 : 1;
  const double uplink = nics * leaf * (pick(0, 1) == 0 ? 1 : 0.25);
  std::vector<std::int32_t> core;
  std::vector<std::int32_t> out;
  std::vector<std::int32_t> in;
  std::vector<std::int32_t> up;
  std::vector<std::int32_t> down;
  for (int node = 0; node < nodes; ++node) {
    core.push_back(add(0, pick(1, 9)));
    for (int nic = 0; nic < nics; ++nic) {
      out.push_back(add(1, node == 0 && nic == 0 ? slow : 1));
      in.push_back(add(2, node == 0 && nic == 0 ? slow : 1));
    }
    if (node % leaf != 0) continue;
    up.push_back(add(3, uplink));
    down.push_back(add(3, uplink));
  }
  for (int count = pick(1, 40); count > 0; --count) {
    const int from = pick(0, nodes - 1);
    const int to = pick(0, nodes - 1);
    const auto at = [](int index) { return static_cast<std::size_t>(index); };
    Uses uses;
    if (from == to || pick(0, 9) == 0) {
      uses = {{core[at(from)], 1.0 * pick(1, 2)}};
    } else {
      const bool is_uneven = from == 0 || to == 0;
      const double total = is_uneven ? nics - 1 + slow : nics;
      for (int nic = 0; nic < nics; ++nic) {
        const double part = (is_uneven && nic == 0 ? slow : 1) / total;
        uses.push_back({out[at(from * nics + nic)], part});
        uses.push_back({in[at(to * nics + nic)], part});
      }
      if (from / leaf != to / leaf) {
        uses.push_back({up[at(from / leaf)], 1});
        uses.push_back({down[at(to / leaf)], 1});
      }
    }
    cluster.paths.push_back(uses);
  }
  return cluster;
}

TEST(BindingResourcesTest, RatesAreTheSameWithoutTheOthers) {
  std::mt19937 random(5);
  std::int64_t uses_of_all = 0;
  std::int64_t uses_that_bind = 0;
  for (int round = 0; round < 300; ++round) {
    const Cluster cluster = RandomCluster(random);
    BindingResources binding(cluster.capacities, cluster.classes);
    for (const Uses& path : cluster.paths) binding.Include(path);
    binding.Decide();
    std::vector<Uses> reduced = cluster.paths;
    for (std::size_t i = 0; i < reduced.size(); ++i) {
      std::erase_if(reduced[i], [&](const Use& use) { return !binding.Binds(use.resource); });
      ASSERT_FALSE(reduced[i].empty()) << "path " << i << " of round " << round;
      uses_of_all += static_cast<std::int64_t>(cluster.paths[i].size());
      uses_that_bind += static_cast<std::int64_t>(reduced[i].size());
    }
    FairShare all(cluster.capacities);
    FairShare few(cluster.capacities);
    std::map<int, int> flows;  // Of all: the same of few.
    std::vector<int> changed;
    for (int step = 0; step < 60; ++step) {
      if (!flows.empty() && random() % 3 == 0) {
        const auto victim = std::next(flows.begin(), random() % flows.size());
        all.Remove(victim->first);
        few.Remove(victim->second);
        flows.erase(victim);
      } else {
        const std::size_t path = random() % reduced.size();
        const int flow = all.Add(cluster.paths[path]);
        flows[flow] = few.Add(reduced[path]);
      }
      all.Solve(&changed);
      few.Solve(&changed);
      for (const auto& [one, other] : flows)
        ASSERT_NEAR(few.rate(other), all.rate(one), 1e-9 * all.rate(one))
            << "flow " << one << " in step " << step << " of round " << round;
    }
  }
  EXPECT_LT(uses_that_bind * 2, uses_of_all);
}

}  // namespace
}  // namespace tidegate
