#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "collectives/transport/shm/process.h"
#include "common/ipc/doorbell.h"
#include "common/mapping.h"

namespace tidegate {

/// Another process of this node, as all groups of this process see it: how to wake it and whether
/// it lives. Made and completed by NodeService; thread-safe.
class Peer {
 public:
  explicit Peer(std::string address) : address_(std::move(address)) {}

  /// Name of its service socket; no two processes have the same.
  const std::string& address() const { return address_; }
  /// Null until the handshake is done; then valid as long as this object.
  Doorbell* doorbell() const { return doorbell_.load(std::memory_order_acquire); }
  /// Its process has ended, or its service is gone.
  bool dead() const { return dead_.load(std::memory_order_acquire); }

 private:
  friend class NodeService;  // Writes what follows, under its mutex.

  const std::string address_;
  Mapping page_;
  std::shared_ptr<Process> process_;  // Null until a connection showed who it is.
  std::atomic<Doorbell*> doorbell_{nullptr};
  std::atomic<bool> dead_{false};
};

}  // namespace tidegate
