#include "python/bindings/inspection.h"

#include <optional>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include "collectives/planner/choices.h"
#include "common/config.h"
#include "common/json/parse_json.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

/// Of the settings that are read further where they are used: what a group would say of the value.
std::string ErrorWhenUsed(const SettingState& state) {
  if (!state.status.ok() || !state.value) return state.status.message();
  if (state.info.name == "TIDEGATE_ALGO")
    return ParseAlgorithmChoices(*state.value).status().message();
  if (state.info.name != "TIDEGATE_TOPO_FILE") return "";
  const Result<std::string> text = ReadTextFile(*state.value, JsonLimits().bytes);
  if (!text.ok()) return "TIDEGATE_TOPO_FILE: " + text.status().message();
  const Result<nlohmann::json> json = ParseJson(text.value());
  return json.ok() ? "" : "TIDEGATE_TOPO_FILE: " + *state.value + ": " + json.status().message();
}

py::list DescribeSettings() {
  py::list settings;
  for (const SettingState& state : InspectSettings(ProcessEnvironment())) {
    py::dict setting;
    setting["name"] = state.info.name;
    setting["type"] = state.info.type;
    setting["range"] = state.info.range;
    setting["default"] = state.info.default_value;
    setting["meaning"] = state.info.help;
    setting["value"] = state.value;
    setting["error"] = ErrorWhenUsed(state);
    settings.append(setting);
  }
  return settings;
}

py::dict NearestOfUnknownSettings() {
  py::dict nearest;
  for (const UnknownSetting& setting : UnknownSettings(ProcessEnvironmentNames()))
    nearest[py::str(setting.name)] = setting.nearest;
  return nearest;
}

py::dict DescribeMachine(const std::string& root) {
  py::dict machine;
  machine["host_name"] = HostName();
  machine["usable_cpus"] = UsableCpus(root);
  machine["cpu_quota"] = CpuQuota(root);
  machine["available_memory"] = AvailableMemory(root);
  machine["memory_limit"] = MemoryLimit(root);
  machine["numa_nodes"] = NumaNodes(root);
  return machine;
}

}  // namespace

void BindInspection(py::module_& module) {
  module.def("settings", &DescribeSettings,
             "Every setting, in the order of docs/configuration.md: a dictionary of its name, "
             "type, range, default, meaning, value (None: unset) and error (empty: none).");
  module.def("unknown_settings", &NearestOfUnknownSettings,
             "Variables of this process that start with TIDEGATE_ but are no setting, each with "
             "the name of the setting that it resembles most.");
  module.def("machine", &DescribeMachine, py::arg("root") = "/",
             "What this process may use, as the backend sees it: usable_cpus, cpu_quota "
             "(processors, None: no limit), available_memory and memory_limit (bytes, None: no "
             "limit), numa_nodes, host_name. `root` replaces / for tests.");
}

}  // namespace tidegate
