#include "backend/error_translation.h"

#include <atomic>

#include <c10/util/Exception.h>

#include "common/check.h"

namespace tidegate {
namespace {

// Written once while the module is imported, read by any thread: no other memory hangs on it.
std::atomic<PendingSignalHook> pending_signal_hook{nullptr};

[[noreturn]] void Throw(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      C10_THROW_ERROR(ValueError, status.message());
    case StatusCode::kUnsupported:
      C10_THROW_ERROR(NotImplementedError, status.message());
    default:
      C10_THROW_ERROR(DistBackendError, status.message());
  }
}

}  // namespace

std::exception_ptr ToException(const Status& status) {
  TIDEGATE_CHECK(!status.ok());
  try {
    Throw(status);
  } catch (...) {
    return std::current_exception();
  }
}

void ThrowStatus(const Status& status) {
  TIDEGATE_CHECK(!status.ok());
  Throw(status);
}

void ThrowPendingSignal() {
  const PendingSignalHook hook = pending_signal_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) hook();
}

void SetPendingSignalHook(PendingSignalHook hook) {
  pending_signal_hook.store(hook, std::memory_order_relaxed);
}

}  // namespace tidegate
