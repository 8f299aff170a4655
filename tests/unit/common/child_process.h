#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "common/unique_fd.h"

namespace tidegate {

/// A forked child that runs `body` and ends with its result, without returning into the test.
/// Killed and reaped when the object goes.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body());
    pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (reaped_) return;
    Kill();
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void Kill() { kill(pid_, SIGKILL); }

  /// The exit status, or -1 when the child was killed or did not end within 30 s.
  int Wait() {
    pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, 30000) != 1) return -1;
    int status = 0;
    reaped_ = waitpid(pid_, &status, 0) == pid_;
    return reaped_ && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
  UniqueFd pidfd_;
  bool reaped_ = false;
};

}  // namespace tidegate
