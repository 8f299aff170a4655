#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/status.h"

namespace tidegate {

/// Processors this process may use: the affinity mask, capped by the cgroup (v1 or v2) cpu quota
/// rounded up; at least 1. `root` replaces "/" for tests with fixture trees.
int UsableCpus(const std::string& root = "/");

/// Processors, n as bit n % 64 of word n / 64. Those from 1,024 on share the bits of others, so
/// that a set may count too few, never too many.
using CpuSet = std::array<std::uint64_t, 16>;

/// The affinity mask of the calling thread; empty where it cannot be read.
CpuSet AffinityMask();

/// The least cgroup (v1 or v2) cpu quota that binds this process, in processors; nullopt: none.
std::optional<double> CpuQuota(const std::string& root = "/");

/// Bytes that this process can be given now without something being killed for them: free and
/// reclaimable memory and swap of the machine, within the cgroup's (v1 or v2) memory limit. The
/// greatest value where neither can be read.
std::uint64_t AvailableMemory(const std::string& root = "/");

/// Bytes of memory that this process could have if nothing else ran: the machine's, within the
/// cgroup's limit. The greatest value where neither can be read.
std::uint64_t TotalMemory(const std::string& root = "/");

/// The least cgroup (v1 or v2) memory limit that binds this process, in bytes; nullopt: none.
std::optional<std::uint64_t> MemoryLimit(const std::string& root = "/");

/// NUMA nodes with memory, from sysfs; at least 1.
int NumaNodes(const std::string& root = "/");

/// The kernel's boot id: equal exactly for processes under one running kernel.
Result<std::string> BootId(const std::string& root = "/");

std::string HostName();

/// What the first processor calls itself in /proc/cpuinfo, on one line; "unknown processor" if
/// nothing does.
std::string CpuModel(const std::string& root = "/");

}  // namespace tidegate
