#include "collectives/topology/routes.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <ranges>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace tidegate {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

/// The best way found so far from a source to one vertex.
struct Label {
  double latency_s = 0;
  double bandwidth_Bps = kInfinite;
  LinkId via = kNone;  ///< Its last link; kNone at the source and where there is no way.
  std::int32_t hops = 0;
  PathClass path = PathClass::kDis;
  std::uint8_t pci_switches = 0;

  auto Cost() const { return std::tuple(path, hops, latency_s, -bandwidth_Bps); }
};

bool IsPcie(const Topology& topology, LinkId id) {
  return topology.link(id).path == PathClass::kPix;
}

/// `label`, the way to from(id), prolonged by `id`; path kDis where traffic does not pass.
Label Prolong(const Topology& topology, const Label& label, LinkId id) {
  const Link& link = topology.link(id);
  Label next = {.latency_s = label.latency_s + link.latency_s,
                .bandwidth_Bps = std::min(label.bandwidth_Bps, topology.bandwidth_Bps(id)),
                .via = id,
                .hops = label.hops + 1,
                .path = std::max(label.path, link.path),
                .pci_switches = label.pci_switches};
  if (label.via == kNone) return next;
  const bool pcie_in = IsPcie(topology, label.via);
  const bool pcie_out = IsPcie(topology, id);
  const auto at_least = [&next](PathClass path) { next.path = std::max(next.path, path); };
  switch (topology.vertex(topology.from(id)).kind) {
    case VertexKind::kRank:
    case VertexKind::kNic:
      next.path = PathClass::kDis;
      break;
    case VertexKind::kGpu: {
      const auto is = [&](LinkId of, PathClass path) { return topology.link(of).path == path; };
      const bool nvl_in = is(label.via, PathClass::kNvl);
      const bool nvl_out = is(id, PathClass::kNvl);
      if (is(label.via, PathClass::kLoc) || is(id, PathClass::kLoc)) break;  // begins or ends here
      if (!nvl_in && !nvl_out) next.path = PathClass::kDis;
      at_least(nvl_in && nvl_out ? PathClass::kNvb : PathClass::kPxn);
      break;
    }
    case VertexKind::kSwitch:
      if (pcie_in && pcie_out && ++next.pci_switches > 1) at_least(PathClass::kPxb);
      break;
    case VertexKind::kNode:
    case VertexKind::kNuma:
    case VertexKind::kCache:
    case VertexKind::kCore:
      if (pcie_in || pcie_out) at_least(PathClass::kPhb);
      break;
  }
  return next;
}

/// The ways from one rank to all vertices of its node, by vertex from the node's first.
std::vector<Label> WaysInside(const Topology& topology, VertexId source) {
  const std::int32_t node = topology.vertex(source).node;
  const VertexId begin = topology.node_begin(node);
  std::vector<Label> labels(At(topology.node_begin(node + 1) - begin));
  labels[At(source - begin)].path = PathClass::kLoc;
  labels[At(source - begin)].pci_switches = 0;
  using Entry = std::pair<decltype(Label{}.Cost()), VertexId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> left;
  left.emplace(labels[At(source - begin)].Cost(), source);
  while (!left.empty()) {
    const auto [cost, v] = left.top();
    left.pop();
    const Label label = labels[At(v - begin)];
    if (cost != label.Cost()) continue;
    for (const LinkId id : topology.leaving(v)) {
      const VertexId to = topology.to(id);
      if (topology.vertex(to).node != node || to == source) continue;
      const Label next = Prolong(topology, label, id);
      Label& old = labels[At(to - begin)];
      if (next.path == PathClass::kDis || next.Cost() >= old.Cost()) continue;
      old = next;
      left.emplace(next.Cost(), to);
    }
  }
  return labels;
}

void Append(const Topology& topology, LinkId id, Route& route) {
  route.links.push_back(id);
  route.latency_s += topology.link(id).latency_s;
  route.bandwidth_Bps = std::min(route.bandwidth_Bps, topology.bandwidth_Bps(id));
}

std::uint64_t Mix(std::uint64_t value) {  // the finaliser of splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace

struct Router::State {
  explicit State(const Topology& of)
      : topology(of),
        fabric_begin(of.node_begin(of.nodes())),
        ways_of_rank(At(of.ranks())),
        rails_of_rank(At(of.ranks())),
        rails_of_node(At(of.nodes())),
        distances(of.vertices().size() - At(fabric_begin)) {}

  const std::vector<Label>& Ways(int rank) {
    std::vector<Label>& ways = ways_of_rank[At(rank)];
    if (ways.empty()) ways = WaysInside(topology, topology.rank_vertex(rank));
    return ways;
  }
  const Label& Way(int rank, VertexId to) {
    return Ways(rank)[At(to - topology.node_begin(topology.node_of(rank)))];
  }

  struct Port {
    Rail rail;
    LinkId link = kNone;  ///< From the NIC out of the node.
  };
  const std::vector<Port>& PortsOfRank(int rank);
  const std::vector<Port>& PortsOfNode(int node);
  bool IsRailed(int node);

  bool IsFabric(VertexId v) const { return v >= fabric_begin; }
  const std::vector<std::int32_t>& Distances(VertexId from);
  std::int32_t FabricHops(const Port& out, const Port& in);
  void AppendInside(int rank, VertexId to, bool reversed, Route& route);
  void AppendFabric(const Port& out, const Port& in, Route& route);
  void Through(int from, int to, const Port& out, const Port& in, Route& route);
  void Between(int from, int to, int rail, Route& route);

  const Topology& topology;
  const VertexId fabric_begin;
  std::vector<std::vector<Label>> ways_of_rank;
  struct Ports {
    bool known = false;
    std::vector<Port> ports;
    std::vector<Rail> rails;
  };
  void Publish(Ports& ports) const;
  std::vector<Ports> rails_of_rank;
  std::vector<Ports> rails_of_node;
  std::vector<std::vector<std::int32_t>> distances;  ///< By fabric vertex; empty: not asked for.
  std::vector<LinkId> backwards;                     ///< Scratch of AppendFabric.
};

void Router::State::Publish(Ports& ports) const {
  ports.known = true;
  for (const Port& port : ports.ports) ports.rails.push_back(port.rail);
}

const std::vector<Router::State::Port>& Router::State::PortsOfNode(int node) {
  Ports& entry = rails_of_node[At(node)];
  if (entry.known) return entry.ports;
  for (VertexId v = topology.node_begin(node); v < topology.node_begin(node + 1); ++v) {
    const Vertex& nic = topology.vertex(v);
    for (const LinkId id : topology.leaving(v)) {
      if (topology.vertex(topology.to(id)).node == node) continue;
      double bandwidth = topology.bandwidth_Bps(id);
      if (nic.bandwidth_Bps > 0) bandwidth = std::min(bandwidth, nic.bandwidth_Bps);
      entry.ports.push_back({.rail = {.nic = v,
                                      .rail = nic.rail,
                                      .affinity = PathClass::kLoc,
                                      .latency_s = topology.link(id).latency_s,
                                      .bandwidth_Bps = bandwidth},
                             .link = id});
    }
  }
  Publish(entry);
  return entry.ports;
}

const std::vector<Router::State::Port>& Router::State::PortsOfRank(int rank) {
  Ports& entry = rails_of_rank[At(rank)];
  if (entry.known) return entry.ports;
  const int node = topology.node_of(rank);
  for (Port port : PortsOfNode(node)) {
    const Label& way = Way(rank, port.rail.nic);
    if (way.path == PathClass::kDis) continue;
    port.rail.affinity = way.path;
    port.rail.latency_s += way.latency_s;
    port.rail.bandwidth_Bps = std::min(port.rail.bandwidth_Bps, way.bandwidth_Bps);
    entry.ports.push_back(port);
  }
  const auto affinity = [](const Port& port) { return port.rail.affinity; };
  std::ranges::stable_sort(entry.ports, {}, affinity);
  const auto local = At(topology.placement().local_of(rank));
  for (auto begin = entry.ports.begin(); begin != entry.ports.end();) {
    const auto end = std::find_if(begin, entry.ports.end(), [&](const Port& port) {
      return affinity(port) != affinity(*begin);
    });
    std::rotate(begin, begin + static_cast<std::ptrdiff_t>(local % At(end - begin)), end);
    begin = end;
  }
  Publish(entry);
  return entry.ports;
}

bool Router::State::IsRailed(int node) {
  const std::vector<Port>& ports = PortsOfNode(node);
  const auto far_end = [this](const Port& port) { return topology.to(port.link); };
  return std::ranges::any_of(
      ports, [&](const Port& port) { return far_end(port) != far_end(ports.front()); });
}

const std::vector<std::int32_t>& Router::State::Distances(VertexId from) {
  std::vector<std::int32_t>& found = distances[At(from - fabric_begin)];
  if (!found.empty()) return found;
  found.assign(distances.size(), kNone);
  found[At(from - fabric_begin)] = 0;
  std::deque<VertexId> left = {from};
  while (!left.empty()) {
    const VertexId v = left.front();
    left.pop_front();
    for (const LinkId id : topology.leaving(v)) {
      const VertexId to = topology.to(id);
      if (!IsFabric(to) || found[At(to - fabric_begin)] != kNone) continue;
      found[At(to - fabric_begin)] = found[At(v - fabric_begin)] + 1;
      left.push_back(to);
    }
  }
  return found;
}

std::int32_t Router::State::FabricHops(const Port& out, const Port& in) {
  const VertexId first = topology.to(out.link);
  const VertexId last = topology.to(in.link);
  if (first == in.rail.nic) return out.link == Topology::reverse(in.link) ? 1 : kNone;
  if (!IsFabric(first) || !IsFabric(last)) return kNone;
  if (first == last) return 2;
  const std::int32_t distance = Distances(first)[At(last - fabric_begin)];
  return distance == kNone ? kNone : distance + 2;
}

void Router::State::AppendInside(int rank, VertexId to, bool reversed, Route& route) {
  const std::size_t begin = route.links.size();
  for (VertexId v = to; v != topology.rank_vertex(rank);) {
    const LinkId via = Way(rank, v).via;
    Append(topology, reversed ? Topology::reverse(via) : via, route);
    v = topology.from(via);
  }
  if (!reversed)
    std::reverse(route.links.begin() + static_cast<std::ptrdiff_t>(begin), route.links.end());
}

void Router::State::AppendFabric(const Port& out, const Port& in, Route& route) {
  Append(topology, out.link, route);
  if (topology.to(out.link) == in.rail.nic) return;
  const VertexId first = topology.to(out.link);
  backwards.clear();
  VertexId at = topology.to(in.link);
  // Of several shortest ways a hash of the two ends takes one, as switches do.
  std::uint64_t hash =
      Mix((static_cast<std::uint64_t>(out.link) << 32) ^ static_cast<std::uint64_t>(in.link));
  while (at != first) {
    const std::vector<std::int32_t>& distance = Distances(first);
    const auto is_nearer = [&](LinkId id) {
      const VertexId to = topology.to(id);
      return IsFabric(to) && distance[At(to - fabric_begin)] == distance[At(at - fabric_begin)] - 1;
    };
    const auto count = std::ranges::count_if(topology.leaving(at), is_nearer);
    auto skip = static_cast<std::ptrdiff_t>(hash % static_cast<std::uint64_t>(count));
    for (const LinkId id : topology.leaving(at)) {
      if (!is_nearer(id) || skip-- > 0) continue;
      backwards.push_back(Topology::reverse(id));
      at = topology.to(id);
      break;
    }
    hash = Mix(hash + 1);
  }
  for (const LinkId id : std::views::reverse(backwards)) Append(topology, id, route);
  Append(topology, Topology::reverse(in.link), route);
}

void Router::State::Through(int from, int to, const Port& out, const Port& in, Route& route) {
  AppendInside(from, out.rail.nic, false, route);
  AppendFabric(out, in, route);
  AppendInside(to, in.rail.nic, true, route);
  route.rail = out.rail.rail;
  route.path = PathClass::kLoc;
  for (const LinkId id : route.links) route.path = std::max(route.path, topology.link(id).path);
  // A NIC's own rate may be less than that of its port's link.
  for (const VertexId nic : {out.rail.nic, in.rail.nic}) {
    const double rate = topology.vertex(nic).bandwidth_Bps;
    if (rate > 0) route.bandwidth_Bps = std::min(route.bandwidth_Bps, rate);
  }
}

void Router::State::Between(int from, int to, int rail, Route& route) {
  const std::vector<Port>& outs = PortsOfRank(from);
  const std::vector<Port>& ins = PortsOfRank(to);
  const bool railed = IsRailed(topology.node_of(from)) || IsRailed(topology.node_of(to));
  const auto cost = [&](const Port& out, const Port& in, std::int32_t hops) {
    const bool crosses = railed && out.rail.rail != in.rail.rail;
    return std::tuple(hops, crosses, std::max(out.rail.affinity, in.rail.affinity),
                      in.rail.affinity, out.rail.affinity, &in - ins.data(), &out - outs.data());
  };
  const Port* best_out = nullptr;
  const Port* best_in = nullptr;
  decltype(cost(outs[0], ins[0], 0)) best{};
  for (const Port& out : outs) {
    if (rail != kNone && out.rail.rail != rail) continue;
    for (const Port& in : ins) {
      if (rail != kNone && in.rail.rail != rail) continue;
      const std::int32_t hops = FabricHops(out, in);
      if (hops == kNone) continue;
      const auto found = cost(out, in, hops);
      if (best_out != nullptr && found >= best) continue;
      best = found;
      best_out = &out;
      best_in = &in;
      // Both preferred NICs, on one rail and below one switch: nothing is better.
      if (hops <= 2 && !std::get<1>(found) && &out == outs.data() && &in == ins.data())
        return Through(from, to, out, in, route);
    }
  }
  if (best_out != nullptr) Through(from, to, *best_out, *best_in, route);
}

Router::Router(const Topology& topology) : state_(std::make_unique<State>(topology)) {}
Router::~Router() = default;

namespace {

void Clear(Route& route) {
  route.links.clear();
  route.latency_s = 0;
  route.bandwidth_Bps = kInfinite;
  route.path = PathClass::kDis;
  route.rail = kNone;
}

}  // namespace

Route Router::Find(int from, int to) {
  Route route;
  Find(from, to, route);
  return route;
}

void Router::Find(int from, int to, Route& route) {
  Clear(route);
  const Topology& topology = state_->topology;
  if (from == to) {
    route.path = PathClass::kLoc;
    return;
  }
  if (topology.node_of(from) == topology.node_of(to)) {
    const VertexId end = topology.rank_vertex(to);
    if (const Label& way = state_->Way(from, end); way.path != PathClass::kDis) {
      route.path = way.path;
      return state_->AppendInside(from, end, false, route);
    }
  }
  state_->Between(from, to, kNone, route);
}

void Router::FindOnRail(int from, int to, int rail, Route& route) {
  Clear(route);
  state_->Between(from, to, rail, route);
}

void Router::FindStripes(int from, int to, std::vector<Stripe>& stripes) {
  stripes.clear();
  double total = 0;
  std::vector<int> seen;
  const std::vector<Rail>& rails = Rails(from);
  for (const Rail& rail : rails) {
    if (rail.affinity != rails.front().affinity || rail.rail < 0) continue;
    if (std::find(seen.begin(), seen.end(), rail.rail) != seen.end()) continue;
    seen.push_back(rail.rail);
    Stripe stripe;
    FindOnRail(from, to, rail.rail, stripe.route);
    if (stripe.route.path == PathClass::kDis) continue;
    total += stripe.route.bandwidth_Bps;
    stripes.push_back(std::move(stripe));
  }
  if (stripes.size() < 2) {
    stripes = {{Find(from, to), 1}};
    return;
  }
  for (Stripe& stripe : stripes) stripe.share = stripe.route.bandwidth_Bps / total;
}

const std::vector<Rail>& Router::Rails(int rank) {
  state_->PortsOfRank(rank);
  return state_->rails_of_rank[At(rank)].rails;
}

const std::vector<Rail>& Router::RailsOfNode(int node) {
  state_->PortsOfNode(node);
  return state_->rails_of_node[At(node)].rails;
}

double Router::NodeBandwidth(int node) {
  double sum = 0;
  for (const Rail& rail : RailsOfNode(node)) sum += rail.bandwidth_Bps;
  return sum;
}

}  // namespace tidegate
