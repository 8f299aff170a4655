#pragma once

#include <Python.h>

namespace tidegate {

/// Releases Python's global lock for its lifetime if this thread holds it, else does nothing: for
/// calls that may block and that C++ and Python both make. Blocking with the lock held would stop
/// the callback thread, for which the call may be waiting.
class GilRelease {
 public:
  GilRelease() {
    if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
  }
  ~GilRelease() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace tidegate
