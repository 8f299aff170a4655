#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tidegate {

/// The engine below tidegate.offload.
void BindOffload(py::module_& module);

}  // namespace tidegate
