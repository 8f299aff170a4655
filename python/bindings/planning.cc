#include "python/bindings/planning.h"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "backend/error_translation.h"
#include "collectives/algorithms/algorithms.h"
#include "collectives/plan_basis.h"
#include "common/config.h"
#include "common/units.h"
#include "python/bindings/cluster.h"

namespace tidegate {
namespace {

namespace py = pybind11;

std::uint64_t ParseBytesOrThrow(const std::string& text) {
  const Result<std::uint64_t> bytes = ParseBytes(text);
  if (!bytes.ok()) ThrowStatus(bytes.status());
  return bytes.value();
}

using MeasuredRow = std::tuple<std::string, std::string, int, double>;

std::string KeepMeasuredRows(int ranks, const std::vector<MeasuredRow>& rows) {
  const Result<Config> config = LoadConfig(ProcessEnvironment());
  if (!config.ok()) ThrowStatus(config.status());
  MeasuredTable table;
  for (const auto& [name, algorithm, size_class, seconds] : rows) {
    const std::optional<Collective> collective = CollectiveNamed(name);
    if (!collective || FindAlgorithm(*collective, algorithm) == nullptr)
      ThrowStatus(Status(StatusCode::kInvalidArgument,
                         "there is no algorithm \"" + algorithm + "\" of \"" + name + "\""));
    table[{*collective, algorithm, size_class}] = seconds;
  }
  const Result<std::string> path = KeepMeasured(config.value(), ranks, table);
  if (!path.ok()) ThrowStatus(path.status());
  return path.value();
}

void BindMakers(py::class_<Cluster>& cluster) {
  cluster
      .def_static("fake", &Cluster::Fake, py::arg("nodes"), py::arg("fabric") = "single_switch",
                  py::arg("rails") = 1, py::arg("oversubscription") = 1.0,
                  py::arg("round_robin") = false,
                  "A made-up cluster: nodes x ranks of each (2x4), or the ranks of each (3+1).")
      .def_static("file", &Cluster::File, py::arg("path"),
                  "What a file of the schema of docs/topology.md describes.")
      .def_static("machine", &Cluster::Machine, py::arg("ranks"), py::arg("root") = "/",
                  "This machine with so many ranks, as TIDEGATE_TOPO_FILE and TIDEGATE_NODE_ID "
                  "have it; it plans as a group of them does. `root` replaces / for tests.");
}

void BindDescription(py::class_<Cluster>& cluster) {
  cluster.def_property_readonly("name", &Cluster::name)
      .def_property_readonly("ranks", &Cluster::ranks)
      .def_property_readonly("nodes", &Cluster::nodes)
      .def("ranks_of_nodes", &Cluster::RanksOfNodes)
      .def("json", &Cluster::Json, "A file that describes it.")
      .def("vertices", &Cluster::Vertices,
           "Dictionaries of id, kind, node, parent, number, rail and bandwidth_Bps; -1: none.")
      .def("links", &Cluster::Links,
           "Dictionaries of id, from, to (indices of vertices), latency_s, bandwidth_Bps, "
           "bandwidth_back_Bps, shared and path.")
      .def("findings", &Cluster::Findings, "What is legal and hardly true, a line each.")
      .def("route", &Cluster::RouteBetween, py::arg("source"), py::arg("target"),
           "The way between two ranks: path (its class), latency_s and bandwidth_Bps.");
}

void BindPlans(py::class_<Cluster>& cluster) {
  cluster
      .def("algorithms", &Cluster::Algorithms, py::arg("collective"),
           "Names of the algorithms that serve here.")
      .def("decide", &Cluster::Decide, py::arg("collective"), py::arg("bytes"), py::arg("root") = 0,
           py::arg("watch") = py::none(),
           "The planner's decision: algorithm, reason, priced_bytes, bound_seconds, bound_cut and "
           "candidates (algorithm, seconds, measured_seconds: 0 where it was not, excluded). "
           "`watch` is called with the name of each algorithm before that is priced.")
      .def("price", &Cluster::Price, py::arg("collective"), py::arg("algorithm"), py::arg("bytes"),
           py::arg("root") = 0, "Seconds that the planner predicts for exactly so many bytes.")
      .def(
          "shape", &Cluster::Shape, py::arg("collective"), py::arg("algorithm"),
          py::arg("root") = 0,
          "What makes its chunks: slot_bytes of this process, sub_slots and parts of the schedule.")
      .def("schedule", &Cluster::ScheduleOf, py::arg("collective"), py::arg("algorithm"),
           py::arg("rank"), py::arg("root") = 0, py::arg("form") = "text",
           "The program of one rank, as text or json.")
      .def("verify", &Cluster::Verify, py::arg("collective"), py::arg("algorithm"),
           py::arg("root") = 0,
           "Prove a plan right; NotImplementedError where that cannot be done.")
      .def("simulate", &Cluster::Simulate, py::arg("collective"), py::arg("algorithm"),
           py::arg("bytes"), py::arg("root") = 0, py::arg("chunk_bytes") = 0, py::arg("orbit") = 0,
           "Run a plan on the simulated cluster, in the executor's chunks (0) or others; `orbit` "
           "ranks stand for all (0: every rank by itself). Gives seconds, tier_bytes, chunk_bytes, "
           "chunks, "
           "peak_stage_bytes, steps, events.")
      .def("bound", &Cluster::BoundOf, py::arg("collective"), py::arg("bytes"), py::arg("root") = 0,
           "Seconds that no plan beats (0: none known), and what binds.");
}

}  // namespace

void BindPlanning(py::module_& module) {
  py::class_<Cluster> cluster(
      module, "Cluster",
      "A topology, and what can be asked of it. Sizes in bytes are those of "
      "the whole tensor; of gather and scatter, of a rank's part.");
  BindMakers(cluster);
  BindDescription(cluster);
  BindPlans(cluster);
  module.def("parse_bytes", &ParseBytesOrThrow, py::arg("text"),
             "Reads \"64M\", \"1.5GiB\" or \"4096\".");
  module.def("keep_measured", &KeepMeasuredRows, py::arg("ranks"), py::arg("rows"),
             "Keeps rows (collective, algorithm, size class, seconds) for groups of so many ranks "
             "that are made on this machine from now on; returns the file.");
}

}  // namespace tidegate
