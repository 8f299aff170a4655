#include "collectives/topology/lint.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>

#include "collectives/topology/routes.h"

namespace tidegate {
namespace {

// The fastest that is sold or announced, with some room, and the slowest that is believable.
constexpr double kMostPcieBps = 256e9;   // PCIe 7.0 x16 has 242e9 byte/s each way.
constexpr double kMostNvlinkBps = 2e12;  // NVLink 5 has 0.9e12 a GPU, each way.
constexpr double kMostPortBps = 400e9;   // 3.2 Tbit/s; ports of 0.8 Tbit/s exist.
constexpr double kMostLocalBps = 40e12;  // HBM4 has less than 10e12.
/// PCIe 1.0 x1 and x2 have 0.25e9 and 0.5e9: no GPU or fast NIC is attached like that.
constexpr double kEmulatedPcieBps = 0.5e9;
constexpr double kOtherUnitBps = 1e6;  // 400 for 400 Gbit/s, 50000 for Mbyte/s.
constexpr double kOtherUnitSeconds = 0.1;
constexpr double kAsymmetry = 1.05;

std::string Short(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

/// Collects findings; of those with one key the first stands for all.
class Findings {
 public:
  void Add(const std::string& key, TopologyFinding finding) {
    const auto [entry, is_new] = by_key_.try_emplace(key, found_.size());
    if (is_new) {
      found_.push_back(std::move(finding));
    } else {
      ++found_[entry->second].alike;
    }
  }
  std::vector<TopologyFinding> Take() { return std::move(found_); }

 private:
  std::vector<TopologyFinding> found_;
  std::map<std::string, std::size_t> by_key_;
};

double MostOf(const Topology& topology, LinkId id) {
  const Link& link = topology.link(id);
  const auto is_nic = [&](VertexId v) { return topology.vertex(v).kind == VertexKind::kNic; };
  switch (link.path) {
    case PathClass::kPix:
      return kMostPcieBps;
    case PathClass::kNvl:
    case PathClass::kC2c:
      return kMostNvlinkBps;
    case PathClass::kNet:  // uplinks of leaves may be the sum of many
      return is_nic(link.a) || is_nic(link.b) ? kMostPortBps : 1e18;
    default:
      return kMostLocalBps;
  }
}

void LintFigures(const Topology& topology, Findings& findings) {
  for (LinkId id = 0; id < topology.link_end(); ++id) {
    const Link& link = topology.link(id);
    const double bandwidth = topology.bandwidth_Bps(id);
    const std::string path(PathClassName(link.path));
    const auto add = [&](const std::string& key, const std::string& what,
                         const std::string& to_do) {
      findings.Add(key + path, {topology.link_name(id), what, to_do});
    };
    if (bandwidth < kOtherUnitBps) {
      add("unit", "a " + path + " link of " + Short(bandwidth) + " byte/s",
          "state byte/s: 400 Gbit/s are 50e9");
    } else if (link.path == PathClass::kPix && bandwidth <= kEmulatedPcieBps) {
      add("emulated",
          "PCIe at " + Short(bandwidth) + " byte/s, the 2.5 GT/s x1 or x2 of an emulated bridge",
          "override the link with the real rate (PCIe 5.0 x16: 63e9), or measure it");
    } else if (bandwidth > MostOf(topology, id)) {
      add("fast", "a " + path + " link of " + Short(bandwidth) + " byte/s, more than there is",
          "state byte/s each way, of one link");
    }
    if (id % 2 == 0 && link.latency_s > kOtherUnitSeconds)
      add("latency", "a latency of " + Short(link.latency_s) + " s",
          "state seconds: 2 us are 2e-6");
  }
}

void LintNics(const Topology& topology, Findings& findings) {
  for (VertexId v = 0; v < static_cast<VertexId>(topology.vertices().size()); ++v) {
    const Vertex& nic = topology.vertex(v);
    if (nic.kind != VertexKind::kNic || nic.bandwidth_Bps <= 0) continue;
    double inside = 0;
    for (const LinkId id : topology.leaving(v)) {
      const double bandwidth = topology.bandwidth_Bps(id);
      if (topology.vertex(topology.to(id)).node == nic.node) {
        inside = std::max(inside, bandwidth);
      } else if (bandwidth > nic.bandwidth_Bps * kAsymmetry) {
        findings.Add("port", {nic.id,
                              "its port has " + Short(nic.bandwidth_Bps) +
                                  " byte/s, the link on it " + Short(bandwidth),
                              "routes take the lesser; correct the other"});
      }
    }
    if (inside > 0 && nic.bandwidth_Bps > inside * kAsymmetry)
      findings.Add("pcie",
                   {nic.id,
                    "a NIC of " + Short(nic.bandwidth_Bps) + " byte/s on a link of " +
                        Short(inside) + " byte/s into its node",
                    "move it to a wider slot, or override the link if it states too little"});
  }
}

void LintCuts(const Topology& topology, Findings& findings) {
  Router router(topology);
  Route route;
  for (int rank = 1; rank < topology.ranks(); ++rank) {
    router.Find(0, rank, route);
    if (route.path != PathClass::kDis) continue;
    findings.Add("cut", {topology.vertex(topology.rank_vertex(rank)).id,
                         "no route joins it with rank 0: every chain of links passes through a NIC "
                         "or a rank that forwards nothing",
                         "join its node's NICs, or its rail, with the others' by a switch"});
  }
  const auto is_idle = [&](VertexId v) {
    const VertexKind kind = topology.vertex(v).kind;
    return (kind == VertexKind::kNic || kind == VertexKind::kGpu) && topology.leaving(v).empty();
  };
  for (VertexId v = 0; v < static_cast<VertexId>(topology.vertices().size()); ++v) {
    const std::string kind(VertexKindName(topology.vertex(v).kind));
    if (is_idle(v))
      findings.Add("idle" + kind, {topology.vertex(v).id, "a " + kind + " without a link",
                                   "add its links, or leave it out"});
  }
  if (topology.placement().nodes() < 2) return;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto is_nic = [&](const Rail& rail) {
      return topology.vertex(rail.nic).kind == VertexKind::kNic;
    };
    if (std::ranges::none_of(router.Rails(rank), is_nic))
      findings.Add("nic", {topology.vertex(topology.rank_vertex(rank)).id,
                           "it reaches no NIC with a cable, though there are several nodes",
                           "add a NIC to its node, and the links to it and to a switch"});
  }
}

void LintDirections(const Topology& topology, Findings& findings) {
  for (LinkId id = 0; id < topology.link_end(); id += 2) {
    const Link& link = topology.link(id);
    const bool is_duplex = link.path == PathClass::kPix || link.path == PathClass::kNvl ||
                           link.path == PathClass::kC2c || link.path == PathClass::kNet;
    const auto [less, more] = std::minmax(link.bandwidth_Bps[0], link.bandwidth_Bps[1]);
    if (!is_duplex || more <= less * kAsymmetry) continue;
    findings.Add("asymmetric" + std::string(PathClassName(link.path)),
                 {topology.link_name(id),
                  "its directions have " + Short(link.bandwidth_Bps[0]) + " and " +
                      Short(link.bandwidth_Bps[1]) + " byte/s",
                  "such links are symmetric; look for a lane, or a figure, that is down"});
  }
}

}  // namespace

std::vector<TopologyFinding> LintTopology(const Topology& topology) {
  Findings findings;
  LintFigures(topology, findings);
  LintNics(topology, findings);
  LintCuts(topology, findings);
  LintDirections(topology, findings);
  return findings.Take();
}

std::string FormatFinding(const TopologyFinding& finding) {
  std::string text = finding.where + ": " + finding.what + "; " + finding.remedy;
  if (finding.alike > 0) text += " (and " + std::to_string(finding.alike) + " like it)";
  return text;
}

}  // namespace tidegate
