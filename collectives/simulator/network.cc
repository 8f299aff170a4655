#include "collectives/simulator/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tidegate {
namespace {

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

Tier TierOf(const Topology& topology, const Route& route) {
  int switches = 0;
  bool leaves_node = false;
  for (const LinkId id : route.links) {
    const Vertex& to = topology.vertex(topology.to(id));
    if (to.node == kNone && to.kind == VertexKind::kSwitch) ++switches;
    leaves_node = leaves_node || topology.link(id).path == PathClass::kNet;
  }
  if (!leaves_node) return Tier::kNode;
  return switches <= 1 ? Tier::kLeaf : Tier::kSpine;
}

}  // namespace

std::string_view TierName(Tier tier) {
  constexpr std::array<std::string_view, kTiers> kNames = {"rank", "node", "leaf", "spine"};
  return kNames[static_cast<std::size_t>(tier)];
}

std::size_t Network::KeyHash::operator()(const std::vector<std::int32_t>& key) const {
  std::uint64_t hash = key.size();
  for (const std::int32_t word : key) {
    hash = (hash ^ static_cast<std::uint32_t>(word)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29;
  }
  return hash;
}

Network::Network(const Topology& topology, Orbits orbits, const LocalRates& rates, bool striped)
    : topology_(topology), orbits_(std::move(orbits)), striped_(striped), router_(topology) {
  AddLinkResources();
  if (std::isfinite(rates.core_Bps)) {
    first_core_ = static_cast<std::int32_t>(capacities_.size());
    capacities_.insert(capacities_.end(), At(topology.ranks()), rates.core_Bps);
  }
  if (std::isfinite(rates.memory_Bps)) {
    first_memory_ = static_cast<std::int32_t>(capacities_.size());
    capacities_.insert(capacities_.end(), At(topology.nodes()), rates.memory_Bps);
  }
  binding_ = BindingResources(capacities_, Classes());
}

void Network::AddLinkResources() {
  const auto links = At(topology_.link_end());
  capacities_.resize(links);
  resource_of_link_.resize(links);
  weight_of_link_.resize(links);
  const int translates = topology_.ranks() / orbits_.shift;
  for (LinkId id = 0; id < topology_.link_end(); ++id) {
    double capacity = topology_.bandwidth_Bps(id);
    for (const VertexId end : {topology_.from(id), topology_.to(id)}) {
      const Vertex& vertex = topology_.vertex(end);
      if (vertex.kind == VertexKind::kNic && vertex.bandwidth_Bps > 0)
        capacity = std::min(capacity, vertex.bandwidth_Bps);
    }
    capacities_[At(id)] = capacity;
  }
  for (LinkId id = 0; id < topology_.link_end(); ++id) {
    const LinkId lowest = orbits_.link[At(id)];
    resource_of_link_[At(id)] = lowest;
    weight_of_link_[At(id)] = static_cast<double>(translates) / orbits_.links[At(id)];
    if (!topology_.link(id).shared) continue;
    // Both directions draw on the capacity of the faster one, each in proportion to its own.
    const LinkId back = Topology::reverse(id);
    const double most = std::max(topology_.bandwidth_Bps(id), topology_.bandwidth_Bps(back));
    weight_of_link_[At(id)] *= most / topology_.bandwidth_Bps(id);
    resource_of_link_[At(id)] = std::min(lowest, orbits_.link[At(back)]);
    capacities_[At(resource_of_link_[At(id)])] = most;
    // Where the orbit holds both directions, each loads it.
    if (lowest == orbits_.link[At(back)]) weight_of_link_[At(id)] *= 2;
  }
  // What passes a NIC uses two links of it, and nothing else does: the slower one stands for both.
  for (VertexId v = 0; v < static_cast<VertexId>(topology_.vertices().size()); ++v) {
    if (topology_.vertex(v).kind != VertexKind::kNic || topology_.leaving(v).size() != 2) continue;
    const LinkId one = topology_.leaving(v)[0];
    const LinkId other = topology_.leaving(v)[1];
    if (topology_.link(one).shared || topology_.link(other).shared) continue;
    for (const auto& [kept, dropped] :
         {std::pair(other, Topology::reverse(one)), std::pair(Topology::reverse(other), one)}) {
      if (orbits_.link[At(kept)] != kept) continue;
      capacities_[At(kept)] =
          std::min(capacities_[At(kept)], capacities_[At(orbits_.link[At(dropped)])]);
    }
    for (const LinkId dropped : {one, Topology::reverse(one)})
      resource_of_link_[At(dropped)] = kNone;
  }
}

/// Of resources: links by what they lead from and to.
std::vector<std::uint8_t> Network::Classes() const {
  constexpr auto kKinds = static_cast<std::uint8_t>(VertexKind::kRank) + 1;
  std::vector<std::uint8_t> classes(capacities_.size(), kKinds * kKinds);
  for (LinkId id = 0; id < topology_.link_end(); ++id) {
    const auto from = static_cast<std::uint8_t>(topology_.vertex(topology_.from(id)).kind);
    const auto to = static_cast<std::uint8_t>(topology_.vertex(topology_.to(id)).kind);
    classes[At(id)] = static_cast<std::uint8_t>(from * kKinds + to);
  }
  if (first_memory_ >= 0)
    std::fill(classes.begin() + first_memory_, classes.end(), kKinds * kKinds + 1);
  return classes;
}

void Network::UseLink(LinkId link, double part, Path& path) const {
  path.links.push_back({link, part});
  const std::int32_t resource = resource_of_link_[At(link)];
  if (resource != kNone) path.uses.push_back({resource, part * weight_of_link_[At(link)]});
}

void Network::UseRoute(const Route& route, double part, Path& path) const {
  for (const LinkId link : route.links) UseLink(link, part, path);
  path.latency_s = std::max(path.latency_s, route.latency_s);
  path.tier = std::max(path.tier, TierOf(topology_, route));
}

void Network::UseLocal(int rank, double core, double memory, Path& path) const {
  if (first_core_ >= 0 && core > 0) path.uses.push_back({first_core_ + rank % orbits_.shift, core});
  if (first_memory_ >= 0 && memory > 0) {
    const int node = topology_.node_of(rank);
    const double translates = static_cast<double>(topology_.ranks()) / orbits_.shift;
    path.uses.push_back(
        {first_memory_ + orbits_.node[At(node)], memory * translates / orbits_.nodes[At(node)]});
  }
}

int Network::Between(int from, int to) {
  const auto [entry, is_new] = known_.try_emplace({-1, from, to}, paths());
  if (!is_new) return entry->second;
  Path path;
  if (striped_ && topology_.node_of(from) != topology_.node_of(to)) {
    std::vector<Stripe> stripes;
    router_.FindStripes(from, to, stripes);
    for (const Stripe& stripe : stripes) UseRoute(stripe.route, stripe.share, path);
  } else {
    router_.Find(from, to, route_);
    UseRoute(route_, 1, path);
  }
  UseLocal(from, 0, 1, path);
  UseLocal(to, 0, 1, path);
  return Keep(std::move(path));
}

int Network::Local(int rank, int reads, std::span<const int> sources) {
  std::vector<std::int32_t> key = {rank, reads};
  key.insert(key.end(), sources.begin(), sources.end());
  const auto [entry, is_new] = known_.try_emplace(std::move(key), paths());
  if (!is_new) return entry->second;
  Path path;
  for (const int source : sources) {
    router_.Find(source, rank, route_);
    UseRoute(route_, 1, path);
  }
  path.transfers = std::max(1, static_cast<int>(sources.size()));
  UseLocal(rank, reads + 1, reads + 1, path);
  return Keep(std::move(path));
}

/// Each resource once, which is what FairShare wants.
int Network::Keep(Path path) {
  const auto merge = [](std::vector<Use>& uses) {
    std::ranges::sort(uses, {}, &Use::resource);
    std::size_t kept = 0;
    for (const Use& use : uses) {
      if (kept > 0 && uses[kept - 1].resource == use.resource) {
        uses[kept - 1].weight += use.weight;
      } else {
        uses[kept++] = use;
      }
    }
    uses.resize(kept);
    uses.shrink_to_fit();
  };
  merge(path.uses);
  merge(path.links);
  path.binding = path.uses.size();
  paths_.push_back(std::move(path));
  return paths() - 1;
}

void Network::Settle() {
  const std::size_t known = settled_;
  for (; settled_ < paths_.size(); ++settled_) binding_.Include(paths_[settled_].uses);
  const bool differs = settled_ > known && binding_.Decide();
  for (std::size_t i = differs ? 0 : known; i < settled_; ++i) {
    std::vector<Use>& uses = paths_[i].uses;
    const auto others = std::ranges::stable_partition(
        uses, [&](const Use& use) { return binding_.Binds(use.resource); });
    paths_[i].binding = uses.size() - others.size();
  }
}

void Network::AddLinkBytes(int path, double bytes, std::vector<double>* link_bytes) const {
  const double translates = static_cast<double>(topology_.ranks()) / orbits_.shift;
  for (const Use& use : this->path(path).links)
    (*link_bytes)[At(orbits_.link[At(use.resource)])] +=
        bytes * use.weight * translates / orbits_.links[At(use.resource)];
}

void Network::SpreadOverOrbits(std::vector<double>* link_bytes) const {
  for (LinkId id = 0; id < topology_.link_end(); ++id)
    (*link_bytes)[At(id)] = (*link_bytes)[At(orbits_.link[At(id)])];
}

}  // namespace tidegate
