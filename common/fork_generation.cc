#include "common/fork_generation.h"

#include <pthread.h>

#include <atomic>

namespace tidegate {
namespace {

std::atomic<std::uint64_t> g_generation{1};

void CountFork() { g_generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint64_t ForkGeneration() {
  static const int installed = pthread_atfork(nullptr, nullptr, CountFork);
  static_cast<void>(installed);
  return g_generation.load(std::memory_order_relaxed);
}

void OnForkInChild(void (*forget)()) { pthread_atfork(nullptr, nullptr, forget); }

}  // namespace tidegate
