#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/ipc/unix_socket.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {

/// Names one process beyond doubt: pids are reused, and mean nothing on another machine or in
/// another container.
struct ProcessIdentity {
  std::string boot_id;
  std::uint64_t pid_namespace = 0;      ///< Inode; 0: not known.
  std::uint64_t network_namespace = 0;  ///< Inode; abstract sockets reach no further. 0: not known.
  pid_t pid = 0;
  std::uint64_t start_time = 0;  ///< Clock ticks from boot to the start; 0: not known.
  std::string host;              ///< For messages.
  std::string node_id = {};      ///< A name given by the user, which sets nodes apart.
};

Result<ProcessIdentity> ThisProcess(const std::string& node_id = {});

/// Start time of a process, 0 when it cannot be read.
std::uint64_t StartTimeOf(pid_t pid);

/// Whether the process of `thread`, whose id may be its pid, was killed or that thread has ended:
/// known long before the process is gone, which takes its time where it has much memory or is
/// killed for want of it. False where /proc does not show it.
bool IsEnding(pid_t thread);

/// Another process of this node whose end is watched: by its pidfd or, where there are none, by
/// looking at /proc. Thread-safe.
class Process {
 public:
  using OpenFunction = Result<UniqueFd> (*)(pid_t);

  /// `start_time` 0: whichever process has that pid now. One that is gone (or whose pid was given
  /// to another) is returned as ended. `open` stands in for the kernel in tests.
  static std::shared_ptr<Process> Watch(pid_t pid, std::uint64_t start_time,
                                        OpenFunction open = OpenPidfd);

  pid_t pid() const { return pid_; }
  std::uint64_t start_time() const { return start_time_; }
  /// Becomes readable at the end; -1: CheckEnded() must be called now and then.
  int pidfd() const { return pidfd_.get(); }

  /// As last seen by CheckEnded().
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  /// Looks. A zombie has ended.
  bool CheckEnded();

 private:
  Process(pid_t pid, std::uint64_t start_time, UniqueFd pidfd)
      : pid_(pid), start_time_(start_time), pidfd_(std::move(pidfd)) {}

  const pid_t pid_;
  const std::uint64_t start_time_;
  const UniqueFd pidfd_;
  std::atomic<bool> ended_{false};
};

}  // namespace tidegate
