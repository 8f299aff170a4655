#include "offload/threads/thread_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "tests/unit/common/drivers/sysfs/sysfs_tree.h"

namespace tidegate::offload {
namespace {

using ::testing::ElementsAre;

std::vector<int> Range(int end) {
  std::vector<int> numbers(static_cast<std::size_t>(end));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// `cores` cores of two threads, n and n + cores, divided over two NUMA nodes.
ThreadFacts TwoNodes(int cores) {
  ThreadFacts facts{.usable = Range(2 * cores)};
  for (int core = 0; core < cores; ++core)
    facts.cores.push_back(
        {.cpu = core, .cpus = {core, core + cores}, .numa = core < cores / 2 ? 0 : 1});
  return facts;
}

/// Two cores of one thread, as on a small virtual machine.
ThreadFacts Laptop() {
  return {.usable = {0, 1}, .cores = {{.cpu = 0, .cpus = {0}}, {.cpu = 1, .cpus = {1}}}};
}

ThreadFacts OfRank(ThreadFacts facts, int rank, int ranks) {
  facts.local_rank = facts.sharer = rank;
  facts.local_ranks = facts.sharers = ranks;
  return facts;
}

std::vector<std::vector<int>> Cpus(const ThreadFacts& facts) {
  std::vector<std::vector<int>> cpus;
  for (const ThreadPlace& place : PlanThreads(facts)) cpus.push_back(place.cpus);
  return cpus;
}

std::vector<int> Nodes(const ThreadFacts& facts) {
  std::vector<int> nodes;
  for (const ThreadPlace& place : PlanThreads(facts)) nodes.push_back(place.numa);
  return nodes;
}

using Sets = std::vector<std::vector<int>>;

TEST(ThreadPlanTest, OneThreadACorePinned) {
  EXPECT_EQ(Cpus(Laptop()), (Sets{{0}, {1}}));
  EXPECT_EQ(Cpus(TwoNodes(4)), (Sets{{0}, {1}, {2}, {3}}));
  EXPECT_THAT(Nodes(TwoNodes(4)), ElementsAre(0, 0, 1, 1));
}

TEST(ThreadPlanTest, CoresOfOneNodeStayTogetherHoweverTheyAreNumbered) {
  ThreadFacts facts{.usable = Range(4)};
  for (int core = 0; core < 4; ++core)
    facts.cores.push_back({.cpu = core, .cpus = {core}, .numa = core % 2});
  EXPECT_EQ(Cpus(facts), (Sets{{0}, {2}, {1}, {3}}));
  EXPECT_EQ(Cpus(OfRank(facts, 1, 2)), (Sets{{1}, {3}}));
}

TEST(ThreadPlanTest, RanksShareTheCoresEquallyAndDisjointly) {
  EXPECT_EQ(Cpus(OfRank(TwoNodes(4), 0, 2)), (Sets{{0}, {1}}));
  EXPECT_EQ(Cpus(OfRank(TwoNodes(4), 1, 2)), (Sets{{2}, {3}}));
  EXPECT_EQ(Cpus(OfRank(Laptop(), 1, 2)), (Sets{{1}}));
  for (const int ranks : {1, 2, 3, 5, 8, 13, 16}) {
    std::set<int> taken;
    std::size_t least = 100;
    std::size_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Sets cpus = Cpus(OfRank(TwoNodes(16), rank, ranks));
      least = std::min(least, cpus.size());
      most = std::max(most, cpus.size());
      for (const std::vector<int>& of_thread : cpus) {
        ASSERT_EQ(of_thread.size(), 1U);
        EXPECT_TRUE(taken.insert(of_thread[0]).second) << ranks;
      }
    }
    EXPECT_EQ(taken.size(), 16U);
    EXPECT_LE(most - least, 1U);
  }
}

TEST(ThreadPlanTest, MoreRanksThanCoresGetAHardwareThreadEach) {
  EXPECT_EQ(Cpus(OfRank(TwoNodes(2), 0, 4)), (Sets{{0}}));
  EXPECT_EQ(Cpus(OfRank(TwoNodes(2), 1, 4)), (Sets{{2}}));
  EXPECT_EQ(Cpus(OfRank(TwoNodes(2), 3, 4)), (Sets{{3}}));
  EXPECT_EQ(Cpus(OfRank(Laptop(), 0, 5)), (Sets{{0}}));
  EXPECT_EQ(Cpus(OfRank(Laptop(), 3, 5)), (Sets{{1}}));
}

TEST(ThreadPlanTest, OnlyProcessorsOfTheMaskAreUsed) {
  ThreadFacts facts = TwoNodes(4);
  facts.usable = {1, 3, 7};  // One of core 1, both of core 3.
  EXPECT_EQ(Cpus(facts), (Sets{{1}, {3}}));
  facts.cores.clear();  // A container may hide them.
  EXPECT_EQ(Cpus(facts), (Sets{{1}, {3}, {7}}));
  facts.usable.clear();
  EXPECT_EQ(PlanThreads(facts), (std::vector<ThreadPlace>(1)));
}

TEST(ThreadPlanTest, FewerThreadsThanCoresAreConfinedToTheirNode) {
  ThreadFacts facts = TwoNodes(4);
  facts.omp_threads = 3;
  EXPECT_EQ(Cpus(facts), (Sets{{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_THAT(Nodes(facts), ElementsAre(0, 0, 1));
}

TEST(ThreadPlanTest, ARankGetsItsPartOfTheQuota) {
  ThreadFacts facts = TwoNodes(8);
  facts.quota = 3.5;
  EXPECT_EQ(PlanThreads(facts).size(), 4U);
  EXPECT_EQ(PlanThreads(OfRank(facts, 0, 3)).size(), 1U);
  EXPECT_EQ(PlanThreads(OfRank(facts, 2, 3)).size(), 2U);
  EXPECT_EQ(PlanThreads(OfRank(facts, 0, 8)).size(), 1U);
  facts.quota = 100;
  EXPECT_EQ(PlanThreads(facts).size(), 8U);
  facts.quota = 0.1;
  EXPECT_EQ(PlanThreads(facts).size(), 1U);
}

struct OmpCase {
  std::size_t omp;
  int ranks;
  std::size_t threads;
};

TEST(ThreadPlanTest, OmpNumThreadsLimitsUnlessTorchrunSetIt) {
  for (const OmpCase& c :
       {OmpCase{.omp = 1, .ranks = 1, .threads = 1}, OmpCase{.omp = 1, .ranks = 2, .threads = 4},
        OmpCase{.omp = 2, .ranks = 2, .threads = 2}, OmpCase{.omp = 3, .ranks = 1, .threads = 3},
        OmpCase{.omp = 64, .ranks = 2, .threads = 4}}) {
    ThreadFacts facts = OfRank(TwoNodes(8), 0, c.ranks);
    facts.omp_threads = c.omp;
    EXPECT_EQ(PlanThreads(facts).size(), c.threads) << c.omp << " " << c.ranks;
  }
}

TEST(ThreadPlanTest, TheSettingOverridesEverything) {
  ThreadFacts facts = TwoNodes(2);
  facts.omp_threads = 1;
  facts.quota = 1;
  facts.threads = 2;
  EXPECT_EQ(Cpus(facts), (Sets{{0}, {1}}));
  facts.threads = 3;  // Physical cores first.
  EXPECT_EQ(Cpus(facts), (Sets{{0}, {1}, {2}}));
  facts.threads = 6;
  EXPECT_EQ(Cpus(facts), (Sets{{0}, {1}, {2}, {3}, {0}, {1}}));
  facts.threads = 1;
  EXPECT_EQ(Cpus(facts), (Sets{{0, 2}}));
}

TEST(ThreadPlanTest, RanksWithMasksOfTheirOwnUseThemWhole) {
  ThreadFacts facts = TwoNodes(4);
  facts.usable = {2, 3, 6, 7};
  facts.local_rank = 1;
  facts.local_ranks = 2;
  EXPECT_EQ(Cpus(facts), (Sets{{2}, {3}}));
}

/// A machine with the processes of a job.
class ThreadFactsTest : public ::testing::Test {
 protected:
  ThreadFactsTest() { AddTwoSockets(tree_); }

  /// A process that was started with `rank` as its LOCAL_RANK (-1: none).
  void AddProcess(const std::string& name, const std::string& parent, const std::string& mask,
                  int rank, const std::string& children = "") {
    tree_.Write("proc/" + name + "/status",
                "Name:\tpython\nPPid:\t" + parent + "\nCpus_allowed_list:\t" + mask);
    std::string environment = std::string("HOME=/root") + '\0';
    if (rank >= 0) environment += "LOCAL_RANK=" + std::to_string(rank) + '\0';
    tree_.Write("proc/" + name + "/environ", environment);
    tree_.Write("proc/" + name + "/task/" + name + "/children", children);
  }
  void AddSelf(const std::string& parent, const std::string& mask) {
    AddProcess("self", parent, mask, 1);
    AddProcess("thread-self", parent, mask, 1);
  }

  ThreadFacts Read(std::map<std::string, std::string, std::less<>> environment,
                   std::optional<std::size_t> setting = std::nullopt) const {
    return ReadThreadFacts(
        setting,
        [&](std::string_view name) -> std::optional<std::string> {
          const auto found = environment.find(name);
          if (found == environment.end()) return std::nullopt;
          return found->second;
        },
        tree_.root());
  }

  SysfsTree tree_;
  const std::map<std::string, std::string, std::less<>> second_of_four_ = {
      {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
};

TEST_F(ThreadFactsTest, ReadsMachineAndEnvironment) {
  AddSelf("10", "0-2,5");
  AddProcess("10", "1", "0-7", -1, "self");
  tree_.Write("proc/self/cgroup", "0::/job");
  tree_.Write("sys/fs/cgroup/job/cpu.max", "250000 100000");
  const ThreadFacts facts = Read({{"OMP_NUM_THREADS", "3,2"}}, 7);
  EXPECT_THAT(facts.usable, ElementsAre(0, 1, 2, 5));
  EXPECT_EQ(facts.cores.size(), 4U);
  EXPECT_EQ(facts.quota, 2.5);
  EXPECT_EQ(facts.threads, 7U);
  EXPECT_EQ(facts.omp_threads, 3U);
  EXPECT_EQ(facts.local_ranks, 1);
  EXPECT_EQ(facts.sharers, 1);
}

TEST_F(ThreadFactsTest, WhatIsNoNumberCountsAsUnset) {
  AddSelf("10", "0-7");
  const ThreadFacts facts =
      Read({{"OMP_NUM_THREADS", "many"}, {"LOCAL_RANK", "4"}, {"LOCAL_WORLD_SIZE", "4"}});
  EXPECT_EQ(facts.omp_threads, std::nullopt);
  EXPECT_EQ(facts.local_ranks, 1);
  EXPECT_EQ(Read({{"OMP_NUM_THREADS", "-3"}}).omp_threads, std::nullopt);
  EXPECT_EQ(Read({{"LOCAL_RANK", "-1"}, {"LOCAL_WORLD_SIZE", "4"}}).local_ranks, 1);
}

TEST_F(ThreadFactsTest, TheMaskOfTheLauncherIsSharedByAllRanks) {
  AddSelf("10", "0-3");
  AddProcess("10", "1", "0-3", -1, "self");
  const ThreadFacts facts = Read(second_of_four_);
  EXPECT_EQ(facts.sharers, 4);
  EXPECT_EQ(facts.sharer, 1);
}

TEST_F(ThreadFactsTest, AMaskOfItsOwnIsNotShared) {
  AddSelf("10", "2-3");
  AddProcess("10", "1", "0-7", -1, "20 self 22 23");
  AddProcess("20", "10", "0-1", 0);
  AddProcess("22", "10", "4-5", 2);
  AddProcess("23", "10", "6-7", 3);
  const ThreadFacts facts = Read(second_of_four_);
  EXPECT_EQ(facts.sharers, 1);
  EXPECT_EQ(facts.sharer, 0);
  EXPECT_EQ(facts.local_ranks, 4);
}

TEST_F(ThreadFactsTest, RanksBoundToOneNumaNodeShareItsMask) {
  AddSelf("10", "0-3");
  AddProcess("10", "1", "0-7", -1, "20 self 22 23");
  AddProcess("20", "10", "0-3", 0);
  AddProcess("22", "10", "4-7", 2);
  AddProcess("23", "10", "4-7", 3);
  const ThreadFacts facts = Read(second_of_four_);
  EXPECT_EQ(facts.sharers, 2);
  EXPECT_EQ(facts.sharer, 1);
}

TEST_F(ThreadFactsTest, LooksThroughWrappers) {
  // The launcher starts a shell script a rank, which starts python under numactl.
  AddSelf("21", "0-3");
  AddProcess("21", "10", "0-7", 1, "self");
  AddProcess("10", "1", "0-7", -1, "20 21 22 23");
  AddProcess("20", "10", "0-7", 0, "30");
  AddProcess("30", "20", "0-3", 0, "40 41");  // With workers of its own.
  AddProcess("40", "30", "0-3", 0);
  AddProcess("41", "30", "0-3", 0);
  AddProcess("22", "10", "0-7", 2, "32");
  AddProcess("32", "22", "4-7", 2);
  const ThreadFacts facts = Read(second_of_four_);
  EXPECT_EQ(facts.sharers, 2);
  EXPECT_EQ(facts.sharer, 1);
}

TEST_F(ThreadFactsTest, WhatCannotBeReadIsSharedByAll) {
  AddSelf("10", "0-3");  // The launcher is of another user, or out of sight.
  const ThreadFacts facts = Read(second_of_four_);
  EXPECT_EQ(facts.sharers, 4);
  EXPECT_EQ(facts.sharer, 1);
}

TEST(ThreadPlanMachineTest, ThisMachineGetsAtLeastOneThread) {
  const ThreadFacts facts = ReadThreadFacts(std::nullopt, ProcessEnvironment());
  EXPECT_FALSE(facts.usable.empty());
  EXPECT_GE(PlanThreads(facts).size(), 1U);
  EXPECT_EQ(PlanThreads(ReadThreadFacts(5, ProcessEnvironment())).size(), 5U);
}

}  // namespace
}  // namespace tidegate::offload
