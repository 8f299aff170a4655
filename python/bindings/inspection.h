#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tidegate {

/// Adds what the `tidegate` command asks for: `settings()`, `unknown_settings()` and `machine()`.
/// None of them needs a group.
void BindInspection(py::module_& module);

}  // namespace tidegate
