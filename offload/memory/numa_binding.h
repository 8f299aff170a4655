#pragma once

#include <cstddef>
#include <span>

#include "common/status.h"

namespace tidegate::offload {

/// No node: memory is placed by the policy of the thread that touches it first, by default on that
/// thread's own node.
inline constexpr int kAnyNode = -1;
/// Nodes are below this, as in the kernel.
inline constexpr int kMaxNodes = 1024;

/// Has pages of `memory` (whole pages, shared) that are committed from now on, through whichever
/// process, placed on NUMA node `node`; pages that are there stay where they are. It is a
/// preference, on purpose: where the node is full others serve, slower, whereas a strict binding
/// would have the kernel kill a process for want of memory on that node while the machine has some.
///
/// kInvalidArgument: no such node, or not for this process (cpuset); kUnsupported: no NUMA in this
/// kernel, or a sandbox forbids the call, which the caller can live with.
Status PreferNode(std::span<std::byte> memory, int node);

/// The node of the page at `address`; kAnyNode where it has no page or the kernel does not tell.
int NodeOf(const std::byte* address);

}  // namespace tidegate::offload
