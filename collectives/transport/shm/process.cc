#include "collectives/transport/shm/process.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/machine/machine.h"

namespace tidegate {
namespace {

struct ProcStat {
  char state = '\0';  // '\0': not readable.
  int threads = 0;
  std::uint64_t start_time = 0;
};

ProcStat ReadStat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {};
  // The command, in parentheses, may itself hold anything: what follows its end is regular.
  const std::size_t end = line.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream fields(line.substr(end + 1));
  ProcStat stat;
  fields >> stat.state;
  // proc(5): state is field 3, num_threads field 20, starttime field 22.
  constexpr int kFieldsBetween = 16;
  std::string skipped;
  for (int i = 0; i < kFieldsBetween; ++i) fields >> skipped;
  if (!(fields >> stat.threads >> skipped >> stat.start_time)) stat.start_time = 0;
  return stat;
}

std::uint64_t Inode(const char* path) {
  struct stat file;
  return stat(path, &file) == 0 ? file.st_ino : 0;
}

}  // namespace

std::uint64_t StartTimeOf(pid_t pid) { return ReadStat(pid).start_time; }

bool IsEnding(pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("State:") && line.find_first_of("ZX") != std::string::npos) return true;
    if (!line.starts_with("SigPnd:") && !line.starts_with("ShdPnd:")) continue;
    // What was sent to the process stays pending until it is gone.
    std::uint64_t pending = 0;
    std::istringstream(line.substr(line.find(':') + 1)) >> std::hex >> pending;
    if ((pending >> (SIGKILL - 1) & 1) != 0) return true;
  }
  return false;
}

Result<ProcessIdentity> ThisProcess(const std::string& node_id) {
  Result<std::string> boot_id = BootId();
  if (!boot_id.ok()) return boot_id.status();
  return ProcessIdentity{.boot_id = std::move(boot_id).value(),
                         .pid_namespace = Inode("/proc/self/ns/pid"),
                         .network_namespace = Inode("/proc/self/ns/net"),
                         .pid = getpid(),
                         .start_time = StartTimeOf(getpid()),
                         .host = HostName(),
                         .node_id = node_id};
}

std::shared_ptr<Process> Process::Watch(pid_t pid, std::uint64_t start_time, OpenFunction open) {
  Result<UniqueFd> pidfd = open(pid);
  // The start time is read after the descriptor is open: from then on the two mean one process.
  const std::uint64_t actual = StartTimeOf(pid);
  const bool other = start_time != 0 && actual != 0 && actual != start_time;
  const bool gone = !pidfd.ok() && pidfd.status().code() == StatusCode::kPeerLost;
  // Without a descriptor, for whatever reason, /proc does.
  std::shared_ptr<Process> process(new Process(pid, start_time != 0 ? start_time : actual,
                                               pidfd.ok() ? std::move(pidfd).value() : UniqueFd()));
  if (other || gone) process->ended_.store(true, std::memory_order_release);
  process->CheckEnded();
  return process;
}

bool Process::CheckEnded() {
  if (ended()) return true;
  bool gone;
  if (pidfd_.valid()) {
    pollfd entry{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    gone = poll(&entry, 1, 0) > 0;
  } else {
    const ProcStat stat = ReadStat(pid_);
    const bool reused = start_time_ != 0 && stat.start_time != 0 && stat.start_time != start_time_;
    // A process lives on without its main thread.
    const bool zombie = stat.state == 'Z' && stat.threads <= 1;
    gone = zombie || stat.state == 'X' || reused || (kill(pid_, 0) != 0 && errno == ESRCH);
  }
  if (gone) ended_.store(true, std::memory_order_release);
  return gone;
}

}  // namespace tidegate
