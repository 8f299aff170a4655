#pragma once

#include <exception>

#include "common/status.h"

namespace tidegate {

// The one place that turns a Status into what Python sees.
//
//   kInvalidArgument                                ValueError (also for dtype and layout: every
//                                                   mistake in the arguments of one call)
//   kUnsupported                                    NotImplementedError
//   kMismatch, kTimeout, kPeerLost, kAborted,
//   kResourceExhausted, kInternal                   torch.distributed.DistBackendError
//   kInterrupted                                    the exception of the Python signal handler
//                                                   (KeyboardInterrupt) by ThrowPendingSignal;
//                                                   DistBackendError for whoever waits later

/// The exception of `status`, for a Work or a Future to keep. REQUIRES: !status.ok().
std::exception_ptr ToException(const Status& status);

/// Throws the exception of `status`. REQUIRES: !status.ok().
[[noreturn]] void ThrowStatus(const Status& status);

/// Throws the exception that a Python signal handler left for this thread, if there is one. To be
/// called after a blocking call, whatever its outcome: the operation may have ended while the
/// handler ran.
void ThrowPendingSignal();

/// What ThrowPendingSignal calls. Set by the bindings, for this folder knows no pybind11.
using PendingSignalHook = void (*)();
void SetPendingSignalHook(PendingSignalHook hook);

}  // namespace tidegate
