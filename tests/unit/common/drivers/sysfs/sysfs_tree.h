#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tidegate {

/// A folder of the test's own that stands for "/", with the files of sysfs that are written into
/// it. Removed with it.
class SysfsTree {
 public:
  SysfsTree()
      : root_(std::filesystem::path(::testing::TempDir()) /
              (std::string("sysfs-") +
               ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~SysfsTree() { std::filesystem::remove_all(root_); }
  SysfsTree(const SysfsTree&) = delete;
  SysfsTree& operator=(const SysfsTree&) = delete;

  std::string root() const { return root_.string(); }

  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }

  /// A core of two threads (or one) in a package, with the last-level cache of `shared`.
  void AddCpu(int cpu, int package, const std::string& siblings, const std::string& shared) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(cpu);
    Write(folder + "/topology/physical_package_id", std::to_string(package));
    Write(folder + "/topology/thread_siblings_list", siblings);
    Write(folder + "/cache/index0/level", "1");
    Write(folder + "/cache/index0/type", "Data");
    Write(folder + "/cache/index0/shared_cpu_list", siblings);
    Write(folder + "/cache/index1/level", "3");
    Write(folder + "/cache/index1/type", "Unified");
    Write(folder + "/cache/index1/shared_cpu_list", shared);
  }

  /// A device at `path` below /sys/devices, whose last part is its address.
  std::string AddPci(const std::string& path, const std::string& pci_class, int vendor,
                     const std::string& speed = "", int lanes = 0, int numa = 0) {
    const std::string folder = "sys/devices/" + path;
    Write(folder + "/class", pci_class);
    Write(folder + "/vendor", std::to_string(vendor));
    Write(folder + "/numa_node", std::to_string(numa));
    if (!speed.empty()) {
      Write(folder + "/max_link_speed", speed);
      Write(folder + "/current_link_width", std::to_string(lanes));
    }
    const std::filesystem::path bus = root_ / "sys/bus/pci/devices";
    std::filesystem::create_directories(bus);
    const std::filesystem::path target = root_ / folder;
    std::filesystem::create_directory_symlink(target, bus / target.filename());
    return folder;
  }

 private:
  std::filesystem::path root_;
};

/// Two sockets of one NUMA node each, two cores of two threads a socket.
inline void AddTwoSockets(SysfsTree& tree) {
  tree.Write("sys/devices/system/cpu/online", "0-7");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int core = cpu % 4;
    tree.AddCpu(cpu, core / 2, std::to_string(core) + "," + std::to_string(core + 4),
                core < 2 ? "0-1,4-5" : "2-3,6-7");
  }
  tree.Write("sys/devices/system/node/online", "0-1");
  for (int numa = 0; numa < 2; ++numa) {
    const std::string folder = "sys/devices/system/node/node" + std::to_string(numa);
    tree.Write(folder + "/cpulist", numa == 0 ? "0-1,4-5" : "2-3,6-7");
    tree.Write(folder + "/distance", numa == 0 ? "10 21" : "21 10");
    tree.Write(folder + "/meminfo", "Node " + std::to_string(numa) + " MemTotal:       1048576 kB");
  }
}

}  // namespace tidegate
