#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/transport/memory_transport.h"
#include "common/mapping.h"
#include "common/status.h"

namespace tidegate {

/// Decides, each time a rank looks for an arrival or a progress word that is there, whether it sees
/// it yet; called with (looking rank, peer). Lets tests delay any peer's progress at will.
using Visibility = std::function<bool(int rank, int peer)>;

/// Stands in for Transport::IsReadable of all ranks.
using IsReadable = std::function<bool(const std::byte* data, std::size_t bytes)>;

/// What keeps the memory of `peer`'s process from being read; ok: nothing.
using Trouble = std::function<Status(int peer)>;

/// Told of what a rank is about to use of its stage, by Transport::CommitStage.
using OnCommit = std::function<void(int rank, std::size_t offset, std::size_t bytes)>;

/// A group whose ranks live in one process: the same schedules, words and stage as over shared
/// memory, for tests and sanitizers, and for groups of one. Ranks may be driven by threads of their
/// own or, since executions are resumable, by one thread in any order.
class LoopbackGroup {
 public:
  LoopbackGroup(int ranks, std::size_t stage_bytes, std::size_t region_bytes = 0);
  ~LoopbackGroup();

  /// The transport of `rank`; owned by the group.
  MemoryTransport& transport(int rank);

  /// Called after each write that a sleeping rank may wait for. Default: nothing.
  void set_wake(std::function<void()> wake);
  /// Default: everything is seen at once.
  void set_visibility(Visibility visible);
  /// Default: everything is readable.
  void set_is_readable(IsReadable is_readable);
  /// Default: none.
  void set_trouble(Trouble trouble);
  /// Default: nobody is told.
  void set_on_commit(OnCommit on_commit);

 private:
  class RankTransport;
  Mapping memory_;
  std::function<void()> wake_;
  Visibility visible_;
  IsReadable is_readable_;
  Trouble trouble_;
  OnCommit on_commit_;
  std::vector<std::unique_ptr<RankTransport>> transports_;
};

}  // namespace tidegate
