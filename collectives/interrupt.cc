#include "collectives/interrupt.h"

#include <atomic>

#include "collectives/communicator.h"

namespace tidegate {
namespace {

std::atomic<bool (*)()> g_interrupted{nullptr};

}  // namespace

void SetInterruptCheck(bool (*interrupted)()) {
  g_interrupted.store(interrupted, std::memory_order_release);
}

bool Interrupted() {
  bool (*const interrupted)() = g_interrupted.load(std::memory_order_acquire);
  return interrupted != nullptr && interrupted();
}

}  // namespace tidegate
