#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collectives/transport/shm/peer.h"
#include "collectives/transport/shm/process.h"
#include "collectives/transport/shm/wire.h"
#include "common/clock.h"
#include "common/ipc/doorbell.h"
#include "common/ipc/unix_socket.h"
#include "common/mapping.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {

/// Told by the node service, on its thread, that some process that is watched or linked has died;
/// which one, the Process and Peer objects say.
class DeathListener {
 public:
  virtual ~DeathListener() = default;
  virtual void OnDeath() = 0;
};

/// What makes a process present on its node: a socket that other processes reach it at, its
/// doorbell, and one thread ("tidegate-node") that answers them and watches whether they live. One
/// a process, shared by all groups. Thread-safe.
///
/// A link gives both processes the other's doorbell, whoever asked first, and lasts until one of
/// them dies: so if this process can ring a peer, that peer can ring this one or is about to, and
/// whoever completes a link rings once to make up for what was missed before.
///
/// The thread never blocks on one peer: all sockets are non-blocking and each connection carries
/// one request and one reply. A process forked from this one inherits nothing that its parent or
/// the peers could mistake for a live service.
class NodeService {
 public:
  /// The service of this process, started on first use. kAborted in a process forked from one that
  /// had it running: its thread does not exist here.
  static Result<std::shared_ptr<NodeService>> Get();
  /// Stops the thread and closes everything; a later Get() starts another service. Blocks for as
  /// long as a listener runs.
  static void StopProcess();

  ~NodeService();
  NodeService(const NodeService&) = delete;
  NodeService& operator=(const NodeService&) = delete;

  /// Where this process sleeps; valid as long as this object, even when stopped.
  Doorbell& doorbell() const { return *reinterpret_cast<Doorbell*>(page_.data()); }
  /// Id of its thread, which ends with the process or once this is stopped.
  pid_t thread_id() const { return thread_id_.load(std::memory_order_acquire); }
  /// Name of the socket, in the abstract namespace.
  const std::string& address() const { return address_; }
  /// True in a process forked from the one that started the service: there, only destroy things.
  bool IsForked() const;

  /// The process whose service has `address`; the handshake runs in the background. One Peer for
  /// each address, kept until it dies.
  std::shared_ptr<Peer> Link(const std::string& address);
  /// Watches process `pid` for as long as the result is held; see Process::Watch.
  std::shared_ptr<Process> Watch(pid_t pid, std::uint64_t start_time);

  /// Hands out `fd`, which stays the caller's, to whoever knows `key`, until Withdraw(key).
  void Offer(const SegmentKey& key, int fd);
  void Withdraw(const SegmentKey& key);

  /// Runs `run`, which must not block for long, on the service's thread, not before `when`; never
  /// once the service is stopped. `run` may call RunAt.
  void RunAt(TimePoint when, std::function<void()> run);

  /// After RemoveListener the listener is not running and is not called again. Neither may be
  /// called from OnDeath or under a lock that OnDeath takes.
  void AddListener(DeathListener* listener);
  void RemoveListener(DeathListener* listener);

 private:
  /// A connection that a peer made: one request is expected until `deadline`.
  struct Incoming {
    UniqueFd socket;
    TimePoint deadline;
  };
  /// A link that this process asked for. The socket is invalid until `retry_at`.
  struct Outgoing {
    std::shared_ptr<Peer> peer;
    UniqueFd socket;
    TimePoint retry_at;
    bool complained = false;
  };
  struct PollSet;

  NodeService(std::string address, UniqueFd listener, UniqueFd wake, UniqueFd page_fd,
              Mapping page);
  static Result<std::shared_ptr<NodeService>> Start();
  void Stop();

  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();

  static void* ThreadMain(void* service);
  void Run();
  void NotifyListeners();
  void RunTimers(std::unique_lock<std::mutex>& lock, TimePoint now);

  // All of these run under mutex_.
  PollSet BuildPollSet();
  void Wake();
  void AcceptAll(TimePoint now);
  void ServeIncoming(TimePoint now);
  void Answer(int socket, const NodeRequest& request, const Message& message);
  void AdvanceOutgoing(TimePoint now);
  void Connect(Outgoing& outgoing, TimePoint now);
  void FinishLink(Outgoing& outgoing, TimePoint now);
  void RetryLater(Outgoing& outgoing, const Status& reason, TimePoint now);
  Status CompleteLink(Peer& peer, int page_fd);
  std::shared_ptr<Process> WatchLocked(pid_t pid, std::uint64_t start_time);
  std::shared_ptr<Peer> PeerAt(const std::string& address);
  void BuryDead();

  const pid_t owner_;  // getpid() of the process whose service this is.
  const std::string address_;
  const UniqueFd page_fd_;
  const Mapping page_;
  // A pthread_t because a std::thread can neither be joined nor destroyed in a forked child.
  pthread_t thread_{};
  std::atomic<pid_t> thread_id_{0};

  std::mutex mutex_;  // Guards all below but the listeners; held at fork. Never while blocking.
  bool stopping_ = false;
  bool news_of_death_ = false;
  TimePoint accept_at_{};  // After a failure to accept, not before this.
  UniqueFd listener_;
  UniqueFd wake_;
  std::list<Incoming> incoming_;
  std::list<Outgoing> outgoing_;
  std::map<std::string, std::shared_ptr<Peer>> peers_;
  std::map<std::pair<pid_t, std::uint64_t>, std::weak_ptr<Process>> processes_;  // By start time.
  std::map<std::array<std::uint64_t, 2>, int> offers_;
  std::multimap<TimePoint, std::function<void()>> timers_;

  std::mutex listener_mutex_;  // Held while listeners run; taken before mutex_, never after.
  std::vector<DeathListener*> listeners_;
};

}  // namespace tidegate
