#pragma once

#include <pybind11/pybind11.h>

namespace tidegate {

/// Adds the class `Cluster`, a topology and what can be asked of it, and `parse_bytes()`: what
/// `tidegate topo`, `plan` and `sim` call. None of them needs a group.
void BindPlanning(pybind11::module_& module);

}  // namespace tidegate
