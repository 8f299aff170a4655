#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "common/status.h"

namespace tidegate {

/// Copies `bytes` from `address` in the process of `thread` to `to`: one copy by the kernel
/// (process_vm_readv), a system call for each GiB. What the other process wrote before it
/// announced that by a release store, which was seen by an acquire load here, is what is read.
/// `thread`: a thread that lives for as long as its process is read; a pid means the main thread,
/// which may end long before its process.
///
/// kPeerLost: there is no such thread, or it ends; kUnsupported: the kernel has no such call or
/// forbids it (kernel.yama.ptrace_scope, seccomp); kInvalidArgument: no memory that can be read so
/// lies there, or not any more, for of a process that is killed for want of memory it is taken
/// before the process is gone; kInternal: `to` cannot be written. `to` may be written in part. Any
/// thread.
Status ReadProcessMemory(pid_t thread, std::uint64_t address, std::byte* to, std::size_t bytes);

/// Whether others could read [data, data + bytes) of this process that way: what a device driver
/// maps, they cannot. Looks at the first page alone: one allocation is of one kind. A system call.
bool OthersCanRead(const std::byte* data, std::size_t bytes);

}  // namespace tidegate
