#include "python/bindings/offload.h"

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "backend/offload_engine.h"
#include "backend/offload_node.h"
#include "backend/offload_parameter.h"
#include "backend/offload_shards.h"
#include "backend/offload_stats.h"
#include "backend/offload_step.h"

namespace tidegate {
namespace {

using offload::Hyperparameters;
using offload::Master;
using offload::Rule;
using offload::States;

/// Of a name in Python its value here.
template <typename Value, std::size_t kSize>
Value Named(std::string_view name,
            const std::array<std::pair<std::string_view, Value>, kSize>& all) {
  for (const auto& [known, value] : all)
    if (known == name) return value;
  C10_THROW_ERROR(ValueError, "no such name: " + std::string(name));
}

Rule RuleNamed(std::string_view name) {
  return Named<Rule, 5>(name, {{{"adamw", Rule::kAdamW},
                                {"adam", Rule::kAdam},
                                {"sgd", Rule::kSgd},
                                {"adagrad", Rule::kAdagrad},
                                {"lion", Rule::kLion}}});
}

Master MasterNamed(std::string_view name) {
  return Named<Master, 3>(
      name, {{{"none", Master::kNone}, {"fp32", Master::kFloat32}, {"split", Master::kSplit}}});
}

States StatesNamed(std::string_view name) {
  return Named<States, 3>(
      name, {{{"fp32", States::kFloat32}, {"bf16", States::kBFloat16}, {"8bit", States::kBlock8}}});
}

void Add(OffloadStep& step, const std::string& rule,
         std::vector<std::shared_ptr<OffloadParameter>> parameters,
         const std::vector<at::Tensor>& gradients, const std::vector<std::size_t>& places,
         double lr, double weight_decay, bool maximize, double beta1, double beta2, double eps,
         bool amsgrad, double momentum, double dampening, bool nesterov, double lr_decay) {
  Hyperparameters chosen;
  chosen.rule = RuleNamed(rule);
  chosen.lr = lr;
  chosen.weight_decay = weight_decay;
  chosen.maximize = maximize;
  chosen.beta1 = beta1;
  chosen.beta2 = beta2;
  chosen.eps = eps;
  chosen.amsgrad = amsgrad;
  chosen.momentum = momentum;
  chosen.dampening = dampening;
  chosen.nesterov = nesterov;
  chosen.lr_decay = lr_decay;
  step.Add(chosen, std::move(parameters), gradients, places);
}

py::object OrNone(const at::Tensor& tensor) {
  return tensor.defined() ? py::cast(tensor) : py::none();
}

void BindParameter(py::module_& module) {
  py::class_<OffloadParameter, std::shared_ptr<OffloadParameter>>(
      module, "OffloadParameter", "What the offload engine keeps for one parameter.")
      .def(py::init([](const at::Tensor& parameter, std::string_view master,
                       std::string_view states, int state_count, bool counts_steps, bool in_arena) {
             return std::make_shared<OffloadParameter>(
                 parameter, MasterNamed(master), StatesNamed(states), state_count, counts_steps,
                 in_arena ? ZerosOfEngine() : OrdinaryZeros());
           }),
           py::arg("parameter"), py::arg("master"), py::arg("states"), py::arg("state_count"),
           py::arg("counts_steps"), py::arg("in_arena") = true)
      .def_property_readonly("states", &OffloadParameter::states)
      .def_property_readonly("scales", &OffloadParameter::scales)
      .def_property_readonly("master",
                             [](const OffloadParameter& self) { return OrNone(self.master()); })
      .def_property_readonly("step",
                             [](const OffloadParameter& self) { return OrNone(self.step()); })
      .def_property_readonly("plain_states", &OffloadParameter::plain_states)
      .def_property_readonly(
          "parameter_strides",
          [](const OffloadParameter& self) { return self.parameter().strides().vec(); },
          "When it was made, of the whole parameter.")
      .def_property_readonly("has_its_memory", &OffloadParameter::HasItsMemory)
      .def_property_readonly("is_of_parent_process", &OffloadParameter::IsOfParentProcess)
      .def("serves", &OffloadParameter::Serves, py::arg("parameter"), py::arg("state_count") = 0)
      .def_readwrite("fresh", &OffloadParameter::fresh)
      .def_readwrite("stream", &OffloadParameter::stream)
      .def("belong_to", &OffloadParameter::BelongTo, py::arg("dtensor"))
      .def("fill_state", &OffloadParameter::FillState, py::arg("index"), py::arg("value"))
      .def("import_state", &OffloadParameter::ImportState, py::arg("index"), py::arg("values"))
      .def("import_master", &OffloadParameter::ImportMaster, py::arg("values"))
      .def("export_state", &OffloadParameter::ExportState, py::arg("index"))
      .def("export_master", &OffloadParameter::ExportMaster);
}

/// Lets a signal (Ctrl-C) end a wait.
Status CheckSignals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  return {};
}

void BindNode(py::module_& module) {
  using std::chrono::milliseconds;
  constexpr auto kWithoutGil = py::call_guard<py::gil_scoped_release>();
  py::class_<OffloadNode, std::shared_ptr<OffloadNode>>(
      module, "OffloadNode", "The memory that the ranks of a node share.")
      .def_static(
          "join",
          [](const std::string& address, int rank, int ranks, milliseconds timeout) {
            return JoinOffloadNode(address, rank, ranks, timeout, &CheckSignals);
          },
          py::arg("address"), py::arg("rank"), py::arg("ranks"), py::arg("timeout"), kWithoutGil,
          "Map the segment that rank 0 hands out.");
  py::class_<OffloadNodeHost>(module, "OffloadNodeHost", "Rank 0's end of making an OffloadNode.")
      .def(py::init<int>(), py::arg("ranks"))
      .def_property_readonly("address", &OffloadNodeHost::address)
      .def(
          "serve",
          [](OffloadNodeHost& self, milliseconds timeout) {
            return self.Serve(timeout, &CheckSignals);
          },
          py::arg("timeout"), kWithoutGil, "Hand the segment out to all others.");
  module.def("offload_node_identity", &OffloadNodeIdentity);
}

void BindShards(py::module_& module) {
  py::class_<OffloadShards, std::shared_ptr<OffloadShards>>(
      module, "OffloadShards", "What the ranks of a node show each other of one optimizer.")
      .def(py::init(&OffloadShards::Make), py::arg("node"))
      .def("plan", &OffloadShards::Plan, py::arg("cuts"))
      .def_property_readonly("rows", &OffloadShards::rows)
      .def(
          "make_record",
          [](OffloadShards& self, std::int64_t row, const at::Tensor& parameter,
             std::string_view master, std::string_view states, int state_count, bool counts_steps) {
            return self.MakeRecord(row, parameter, MasterNamed(master), StatesNamed(states),
                                   state_count, counts_steps);
          },
          py::arg("row"), py::arg("parameter"), py::arg("master"), py::arg("states"),
          py::arg("state_count"), py::arg("counts_steps"))
      .def("card", &OffloadShards::Card)
      .def("set_cards", &OffloadShards::SetCards, py::arg("cards"))
      .def("register", &OffloadShards::Register, py::arg("records"))
      .def("register_step", &OffloadShards::RegisterStep, py::arg("step"))
      .def("put_sums", &OffloadShards::PutSums, py::arg("step"), py::arg("turn"))
      .def("total_sums", &OffloadShards::TotalSums, py::arg("step"), py::arg("turn"))
      .def("fetch", &OffloadShards::Fetch, py::arg("step"))
      .def("strides_of", &OffloadShards::StridesOf, py::arg("row"))
      .def("orders_of", &OffloadShards::OrdersOf, py::arg("step"))
      .def("gather", &OffloadShards::Gather, py::arg("row"), py::arg("whole"))
      .def_static("keep_all", &OffloadShards::KeepAll);
}

}  // namespace

void BindOffload(py::module_& module) {
  BindParameter(module);
  BindNode(module);
  py::class_<OffloadStep>(module, "OffloadStep", "The steps of one offloaded optimizer.")
      .def(py::init<>())
      .def("fetch_again", &OffloadStep::FetchAgain,
           "Bring into the cache what the last step looked at.")
      .def("stale", &OffloadStep::Stale, py::arg("records"), py::arg("parameters"),
           py::arg("state_count"), "The places whose record has to be made anew.")
      .def("add", &Add, py::arg("rule"), py::arg("parameters"), py::arg("gradients"), py::kw_only(),
           py::arg("places"), py::arg("lr"), py::arg("weight_decay") = 0.0,
           py::arg("maximize") = false, py::arg("beta1") = 0.9, py::arg("beta2") = 0.999,
           py::arg("eps") = 1e-8, py::arg("amsgrad") = false, py::arg("momentum") = 0.0,
           py::arg("dampening") = 0.0, py::arg("nesterov") = false, py::arg("lr_decay") = 0.0,
           "Take the gradients of parameters of one group into the next step.")
      .def("sums", &OffloadStep::Sums, py::arg("factor"),
           "The sum of squares of each gradient times `factor`, float64.")
      .def(
          "run",
          [](OffloadStep& self, double factor, std::uint64_t seed, bool wants_sums) {
            return OrNone(self.Run(factor, seed, wants_sums));
          },
          py::arg("factor"), py::arg("seed"), py::arg("wants_sums"),
          "Step everything that was added, with each gradient times `factor`.")
      .def("clear", &OffloadStep::Clear, "Drop everything that was added.");
  BindShards(module);
  module.def("offload_stats_json", &OffloadStatsJson);
}

}  // namespace tidegate
