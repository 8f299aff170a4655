// The Python module _c10d_pt<major><minor>: what python/tidegate/_backend.py calls, and the types
// that c10d sees. Everything that knows pybind11 is in this folder.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "backend/coalescing.h"
#include "backend/error_translation.h"
#include "backend/null_backend.h"
#include "backend/process_group.h"
#include "collectives/communicator.h"
#include "collectives/reaper.h"
#include "common/clock.h"
#include "python/bindings/inspection.h"
#include "python/bindings/offload.h"
#include "python/bindings/planning.h"

namespace tidegate {
namespace {

using Options = ProcessGroupTidegate::Options;

/// The one thread on which Python runs signal handlers.
unsigned long python_main_thread = 0;

/// What a signal handler threw, on its way to the call that it interrupted.
struct PendingSignal {
  std::atomic<bool> present{false};  // Asked without the GIL; set on the main thread alone.
  std::optional<py::error_already_set> error;  // Guarded by the GIL.
};

/// Never destroyed: Python may be gone by then.
PendingSignal& Pending() {
  static auto* const pending = new PendingSignal();
  return *pending;
}

bool OnPythonMainThread() { return PyThread_get_thread_ident() == python_main_thread; }

/// While Python threads compute, taking the GIL costs 5 ms, and a blocked call may sleep a thousand
/// times a second.
constexpr Nanoseconds kSignalCheckInterval = std::chrono::milliseconds(50);

/// For the core: a thread that blocks asks before each sleep. Threads other than the main one are
/// answered without the GIL, and so is the main one most of the time.
bool SignalArrived() {
  static TimePoint next_check{};  // Of the main thread alone.
  if (!OnPythonMainThread() || SteadyClock().Now() < next_check) return false;
  const py::gil_scoped_acquire gil;
  const bool raised = PyErr_CheckSignals() != 0;
  next_check = SteadyClock().Now() + kSignalCheckInterval;
  if (!raised) return false;
  Pending().error.emplace();
  Pending().present.store(true, std::memory_order_relaxed);
  return true;
}

/// For error_translation: see ThrowPendingSignal.
void ThrowIfSignalPending() {
  if (!Pending().present.load(std::memory_order_relaxed) || !OnPythonMainThread()) return;
  const py::gil_scoped_acquire gil;
  Pending().present.store(false, std::memory_order_relaxed);
  const py::error_already_set error = *Pending().error;
  Pending().error.reset();
  throw error;
}

/// For the reaper: see SetLockProbe.
void TakeAndGiveBackTheGil() { const py::gil_scoped_acquire gil; }

/// For the coalescing windows: see SetWindowOwnerHook. tidegate._coalescing knows the opener, which
/// is torch's context manager.
std::function<bool()> WatchOpenerOfWindow() {
  if (!Py_IsInitialized()) return nullptr;
  const py::gil_scoped_acquire gil;
  if (PyEval_GetFrame() == nullptr) return nullptr;
  py::object ended = py::module_::import("tidegate._coalescing").attr("watch_opener")();
  if (ended.is_none()) return nullptr;
  // Dropped by whichever thread closes the window, with or without the GIL.
  const std::shared_ptr<py::object> shared(new py::object(std::move(ended)), [](py::object* held) {
    if (!Py_IsInitialized()) return;  // The main thread's windows go last of all.
    const py::gil_scoped_acquire gil_of_deleter;
    delete held;
  });
  return [shared] {
    const py::gil_scoped_acquire gil_of_call;
    return (*shared)().cast<bool>();
  };
}

void ShutdownAll() {
  ShutdownProcess();
  ThrowIfSignalPending();
}

void BindOptions(py::handle scope) {
  const auto copy = [](const Options& self, const py::args&) {
    return c10::make_intrusive<Options>(self);
  };
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(
      scope, "Options", "Options of one group, for init_process_group(pg_options=...).")
      .def(py::init([](std::chrono::milliseconds timeout, LimitTexts limits) {
             auto options = c10::make_intrusive<Options>(timeout);
             options->limits = std::move(limits);
             return options;
           }),
           py::arg("timeout") = kBackendDefaultTimeout, py::arg("limits") = LimitTexts())
      .def_readonly("limits", &Options::limits,
                    "Of the group's own, by TIDEGATE_AG_* names; empty: the process's hold.")
      // c10d copies the options of a group to those that it splits off.
      .def("__copy__", copy)
      .def("__deepcopy__", copy);
}

using BackendClass =
    py::class_<ProcessGroupTidegate, c10d::Backend, c10::intrusive_ptr<ProcessGroupTidegate>>;

/// What the base class binds in newer torches alone, under the names that ProcessGroupGloo and
/// ProcessGroupNCCL give it in all.
void BindBackend(BackendClass& backend) {
  constexpr auto kWithoutGil = py::call_guard<py::gil_scoped_release>();
  backend
      .def_property_readonly("options", &ProcessGroupTidegate::getBackendOptions,
                             "A copy of the options of the group.")
      .def("_set_default_timeout", &ProcessGroupTidegate::setTimeout, kWithoutGil,
           py::arg("timeout"), "Set the timeout of later operations that name none.")
      .def("_set_limits", &ProcessGroupTidegate::SetLimits, kWithoutGil, py::arg("limits"),
           "Hold the group's all-gathers to limits of its own; as set_limits of the module.")
      .def("get_error", &ProcessGroupTidegate::getError, kWithoutGil,
           "Say whether the group has failed (ErrorType.SUCCESS: it has not), and how.")
      .def("split", &ProcessGroupTidegate::split, kWithoutGil, py::arg("store"), py::arg("ranks"),
           py::arg("opts"),
           "Make the group of some ranks of this one (None elsewhere); opts.group_name names it.")
      // c10d calls it on ranks that are in none of the groups being split off.
      .def(
          "perform_nocolor_split", [](ProcessGroupTidegate&, const py::object&) {},
          py::arg("device"), "Do nothing: a split asks nothing of ranks outside the new group.");
}

}  // namespace

PYBIND11_MODULE(TIDEGATE_SHIM_NAME, module) {
  // Registers the base classes that the classes below name.
  py::module_::import("torch.distributed");

  const py::object main_thread = py::module_::import("threading").attr("main_thread")();
  python_main_thread = main_thread.attr("ident").cast<unsigned long>();
  SetPendingSignalHook(ThrowIfSignalPending);
  SetInterruptCheck(SignalArrived);
  SetWindowOwnerHook(WatchOpenerOfWindow);
  Reaper::SetLockProbe(TakeAndGiveBackTheGil);

  module.attr("torch_version") = TORCH_VERSION;

  BackendClass backend(module, "ProcessGroupTidegate");
  BindOptions(backend);
  BindInspection(module);
  BindOffload(module);
  BindPlanning(module);
  BindBackend(backend);

  module.def("create_backend", &ProcessGroupTidegate::Create,
             py::call_guard<py::gil_scoped_release>(), py::arg("store"), py::arg("rank"),
             py::arg("size"), py::arg("timeout"), py::arg("group_name"), py::arg("global_ranks"),
             py::arg("options") = py::none(), "Make one rank's backend of one group; cheap.");
  py::class_<NullBackend, c10d::Backend, c10::intrusive_ptr<NullBackend>>(
      module, "NullBackend", "A backend that communicates nothing: what c10d costs by itself.")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("size"));
  module.def("stats_json", &StatsJson, py::call_guard<py::gil_scoped_release>());
  module.def(
      "set_limits",
      [](const LimitTexts& limits) {
        if (const Status set = SetLimits(limits); !set.ok()) ThrowStatus(set);
      },
      py::call_guard<py::gil_scoped_release>(), py::arg("limits"),
      "Hold the all-gathers of this process to limits, by TIDEGATE_AG_* names and in their "
      "syntax.");
  module.def("shutdown_all", &ShutdownAll, py::call_guard<py::gil_scoped_release>(),
             "Drain and close all groups and join all threads; for the exit hook.");
}

}  // namespace tidegate
