#include "common/machine/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>

#include "tests/unit/common/child_process.h"

namespace tidegate {
namespace {

/// A folder that stands for "/", filled by the test and removed afterwards.
class MachineTest : public ::testing::Test {
 protected:
  MachineTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tidegate-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string root() const { return root_.string(); }

  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

 private:
  std::filesystem::path root_;
};

TEST_F(MachineTest, NoCgroupIsNoQuota) { EXPECT_EQ(CpuQuota(root()), std::nullopt); }

TEST_F(MachineTest, ReadsQuotaOfVersion2) {
  Write("proc/self/cgroup", "0::/user.slice/job\n");
  Write("sys/fs/cgroup/user.slice/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(CpuQuota(root()), 1.5);
}

TEST_F(MachineTest, MaxIsNoQuotaInVersion2) {
  Write("proc/self/cgroup", "0::/job\n");
  Write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(root()), std::nullopt);
}

TEST_F(MachineTest, LeastQuotaOnTheWayUpCounts) {
  Write("proc/self/cgroup", "0::/a/b/c\n");
  Write("sys/fs/cgroup/a/cpu.max", "200000 100000\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
  Write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/other/cpu.max", "50000 100000\n");
  EXPECT_EQ(CpuQuota(root()), 2.0);
}

TEST_F(MachineTest, ReadsQuotaOfVersion1) {
  Write("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/y\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "250000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/cpu/y/cpu.cfs_quota_us", "10000\n");
  Write("sys/fs/cgroup/cpu/y/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root()), 2.5);
}

TEST_F(MachineTest, MinusOneIsNoQuotaInVersion1) {
  Write("proc/self/cgroup", "1:cpu:/\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root()), std::nullopt);
}

TEST_F(MachineTest, HybridHierarchyTakesTheLesserQuota) {
  Write("proc/self/cgroup", "1:cpu:/job\n0::/job\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/unified/job/cpu.max", "200000 100000\n");
  EXPECT_EQ(CpuQuota(root()), 2.0);
}

// A container without a cgroup namespace sees the host's path, but only its own part of the tree.
TEST_F(MachineTest, PathOutsideTheMountFallsBackToItsTop) {
  Write("proc/self/cgroup", "2:cpu:/docker/0123/init\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root()), 4.0);
}

TEST_F(MachineTest, PathAboveTheNamespaceStaysInsideTheMount) {
  Write("proc/self/cgroup", "0::/../../elsewhere\n");
  Write("sys/cpu.max", "100000 100000\n");
  Write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(CpuQuota(root()), 3.0);
}

TEST_F(MachineTest, MalformedFilesAreNoQuota) {
  Write("proc/self/cgroup", "nonsense\n0::\n::\n0::/job\n");
  Write("sys/fs/cgroup/cpu.max", "\n");
  Write("sys/fs/cgroup/job/cpu.max", "0 0\n");
  EXPECT_EQ(CpuQuota(root()), std::nullopt);
}

TEST_F(MachineTest, AvailableMemoryIsUnlimitedWhenUnknown) {
  EXPECT_EQ(AvailableMemory(root()), std::numeric_limits<std::uint64_t>::max());
}

TEST_F(MachineTest, AvailableMemoryIncludesSwap) {
  Write("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:  300 kB\nSwapFree:  20 kB\n");
  EXPECT_EQ(AvailableMemory(root()), 320u * 1024);
}

TEST_F(MachineTest, AvailableMemoryEndsAtTheLimitOfVersion2) {
  Write("proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "0::/pod/job\n");
  Write("sys/fs/cgroup/pod/job/memory.max", "max\n");
  Write("sys/fs/cgroup/pod/job/memory.current", "500\n");
  Write("sys/fs/cgroup/pod/memory.max", "1000\n");
  Write("sys/fs/cgroup/pod/memory.current", "700\n");
  Write("sys/fs/cgroup/pod/memory.stat", "anon 500\nfile 200\ninactive_file 60\nactive_file 40\n");
  EXPECT_EQ(AvailableMemory(root()), 400u);
  Write("sys/fs/cgroup/pod/memory.current", "5000\n");
  EXPECT_EQ(AvailableMemory(root()), 0u);
}

TEST_F(MachineTest, AvailableMemoryEndsAtTheLimitOfVersion1) {
  Write("proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu:/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500\n");
  Write("sys/fs/cgroup/memory/memory.stat", "inactive_file 9\ntotal_inactive_file 100\n");
  EXPECT_EQ(AvailableMemory(root()), 600u);
}

TEST_F(MachineTest, TotalMemoryEndsAtTheLimit) {
  EXPECT_EQ(TotalMemory(root()), std::numeric_limits<std::uint64_t>::max());
  Write("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:  300 kB\n");
  EXPECT_EQ(TotalMemory(root()), 900u * 1024);
  Write("proc/self/cgroup", "0::/pod\n");
  Write("sys/fs/cgroup/pod/memory.max", "1000\n");
  EXPECT_EQ(TotalMemory(root()), 1000u);
}

TEST_F(MachineTest, MemoryLimitIsTheLeastOnTheWayUp) {
  EXPECT_EQ(MemoryLimit(root()), std::nullopt);
  Write("proc/self/cgroup", "0::/pod/job\n");
  Write("sys/fs/cgroup/pod/job/memory.max", "max\n");
  EXPECT_EQ(MemoryLimit(root()), std::nullopt);
  Write("sys/fs/cgroup/pod/memory.max", "1000\n");
  EXPECT_EQ(MemoryLimit(root()), 1000u);
}

TEST_F(MachineTest, Version1SaysNoMemoryLimitByAHugeNumber) {
  Write("proc/self/cgroup", "4:memory:/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(MemoryLimit(root()), std::nullopt);
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");
  EXPECT_EQ(MemoryLimit(root()), 2000u);
}

TEST_F(MachineTest, UsableCpusIsTheAffinityMaskWithoutQuota) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  EXPECT_EQ(UsableCpus(root()), CPU_COUNT(&mask));
}

TEST_F(MachineTest, UsableCpusIsTheQuotaRoundedUpAndAtLeastOne) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "1000 100000\n");
  EXPECT_EQ(UsableCpus(root()), 1);
  Write("sys/fs/cgroup/cpu.max", "110000 100000\n");
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  EXPECT_EQ(UsableCpus(root()), std::min(2, CPU_COUNT(&mask)));
}

TEST_F(MachineTest, AffinityMaskHasABitForEachProcessorOfTheThread) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    CpuSet expected{};
    expected[static_cast<std::size_t>(cpu) / 64] = std::uint64_t{1} << cpu % 64;
    EXPECT_EQ(AffinityMask(), expected);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST_F(MachineTest, UsableCpusFollowsTheAffinityMask) {
  ChildProcess child([&] {
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return 1;
    int cpu = 0;
    while (!CPU_ISSET(cpu, &mask)) ++cpu;
    CPU_ZERO(&mask);
    CPU_SET(cpu, &mask);
    if (sched_setaffinity(0, sizeof(mask), &mask) != 0) return 2;
    return UsableCpus(root()) == 1 ? 0 : 3;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(MachineTest, CountsNumaNodesWithMemory) {
  EXPECT_EQ(NumaNodes(root()), 1);
  Write("sys/devices/system/node/has_memory", "0\n");
  EXPECT_EQ(NumaNodes(root()), 1);
  Write("sys/devices/system/node/has_memory", "0-1,4,6-7\n");
  EXPECT_EQ(NumaNodes(root()), 5);
  Write("sys/devices/system/node/has_memory", "junk\n");
  EXPECT_EQ(NumaNodes(root()), 1);
}

TEST_F(MachineTest, BootIdIsTheKernels) {
  EXPECT_FALSE(BootId(root()).ok());
  Write("proc/sys/kernel/random/boot_id", "7a1c6d52-0f5e-4a55-9a0e-3b2f1c4d5e6f\n");
  EXPECT_EQ(BootId(root()).value(), "7a1c6d52-0f5e-4a55-9a0e-3b2f1c4d5e6f");
}

TEST(ThisMachineTest, AnswersAreSane) {
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_GE(NumaNodes(), 1);
  EXPECT_FALSE(HostName().empty());
  const Result<std::string> boot_id = BootId();
  if (!boot_id.ok()) GTEST_SKIP() << boot_id.status().message();
  EXPECT_EQ(boot_id.value().size(), 36u);
  EXPECT_EQ(boot_id.value(), BootId().value());
}

}  // namespace
}  // namespace tidegate
