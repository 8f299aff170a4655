#include "bench/collectives/group_of_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "bench/collectives/session.h"
#include "common/unique_fd.h"

namespace tidegate::bench {
namespace {

constexpr int kPollMilliseconds = 50;

/// Anonymous memory that forked processes share.
class ForkSharedArea {
 public:
  ForkSharedArea() {
    void* const memory = mmap(nullptr, sizeof(SharedArea), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) area_ = static_cast<SharedArea*>(memory);
  }
  ~ForkSharedArea() {
    if (area_ != nullptr) munmap(area_, sizeof(SharedArea));
  }
  ForkSharedArea(const ForkSharedArea&) = delete;
  ForkSharedArea& operator=(const ForkSharedArea&) = delete;

  SharedArea* get() const { return area_; }

 private:
  SharedArea* area_ = nullptr;
};

/// Ends with the parent, whatever way that ends.
pid_t ForkChild() {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
  }
  return pid;
}

void End(const std::vector<int>& pids) {
  for (const int pid : pids) kill(pid, SIGKILL);
  for (const int pid : pids) waitpid(pid, nullptr, 0);
}

void WriteLine(int fd, const std::string& line) {
  for (std::size_t written = 0; written < line.size();) {
    const ssize_t wrote = write(fd, line.data() + written, line.size() - written);
    if (wrote < 0 && errno != EINTR) _exit(1);
    if (wrote > 0) written += static_cast<std::size_t>(wrote);
  }
}

/// The whole life of a rank; its exit status.
int RunRank(SharedArea& area, int rank, int ranks, const Options& options, int sink) {
  const auto report = [sink](const nlohmann::json& cell) { WriteLine(sink, cell.dump() + "\n"); };
  Result<Session> session = Session::Make(area, rank, ranks, options, report);
  const Status status = session.ok() ? session.value().Run() : session.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "tidegate_bench_node: rank %d of %d: %s\n", rank, ranks,
               status.message().c_str());
  return 1;
}

/// Reaps what has ended; false if one of them failed.
bool ReapEnded(std::vector<int>& pids) {
  bool ok = true;
  std::erase_if(pids, [&ok](int pid) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) return false;
    ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return true;
  });
  return ok;
}

}  // namespace

Status RunGroup(const Options& options, int ranks,
                const std::function<void(nlohmann::json cell)>& report) {
  const ForkSharedArea area;
  if (area.get() == nullptr) return ErrnoStatus(errno, "mmap of the memory that the ranks share");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  const UniqueFd source(ends[0]);
  UniqueFd sink(ends[1]);
  std::fflush(nullptr);
  std::vector<int> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = ForkChild();
    if (pid == 0) std::exit(RunRank(*area.get(), rank, ranks, options, sink.get()));
    if (pid < 0) {
      const Status status = ErrnoStatus(errno, "fork of a rank");
      End(pids);
      return status;
    }
    pids.push_back(pid);
  }
  sink = UniqueFd();

  std::string text;
  while (!pids.empty()) {
    pollfd waiting{.fd = source.get(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPollMilliseconds) > 0) {
      char chunk[4096];
      const ssize_t got = read(source.get(), chunk, sizeof(chunk));
      if (got > 0) text.append(chunk, static_cast<std::size_t>(got));
      for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos;) {
        report(nlohmann::json::parse(text.substr(0, end)));
        text.erase(0, end + 1);
      }
      if (got > 0) continue;  // The ranks are looked after when there is nothing to read.
    }
    if (!ReapEnded(pids)) {
      End(pids);
      return {StatusCode::kInternal,
              "a rank of " + std::to_string(ranks) + " failed; its reason is above"};
    }
  }
  return {};
}

BusyCores::BusyCores() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof(usable), &usable);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable)) continue;
    const pid_t pid = ForkChild();
    if (pid == 0) {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(core, &own);
      sched_setaffinity(0, sizeof(own), &own);
      for (volatile unsigned turns = 0;;) turns = turns + 1;
    }
    if (pid > 0) pids_.push_back(pid);
  }
}

BusyCores::~BusyCores() { End(pids_); }

}  // namespace tidegate::bench
