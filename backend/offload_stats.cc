#include "backend/offload_stats.h"

#include <sys/stat.h>

#include <vector>

#include <nlohmann/json.hpp>

#include "backend/offload_engine.h"
#include "backend/offload_node.h"

namespace tidegate {
namespace {

nlohmann::json ToJson(const offload::ArenaStats& stats) {
  return {{"blocks", stats.blocks},
          {"requested_bytes", stats.requested_bytes},
          {"committed_bytes", stats.committed_bytes},
          {"huge_bytes", stats.huge_bytes},
          {"requested_high_water", stats.requested_high_water},
          {"committed_high_water", stats.committed_high_water},
          {"torch_pinned_bytes", stats.torch_pinned_bytes},
          {"pages", PageKindName(stats.pages)},
          {"pages_reason", stats.pages_reason},
          {"pinning", PinKindName(stats.pinning)},
          {"pinned_bytes", stats.pinned_bytes},
          {"pinning_problem", stats.pinning_problem},
          {"placement_problem", stats.placement_problem}};
}

/// The number by which all ranks, and /proc/self/maps, know the file.
std::uint64_t InodeOf(int fd) {
  struct stat status = {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::string OffloadStatsJson() {
  OffloadEngine* const engine = OffloadEngine::IfMade();
  if (engine == nullptr) return "{}";
  std::vector<int> threads;
  for (const offload::ThreadPlace& place : engine->pool().places())
    threads.push_back(place.cpus.size() == 1 ? place.cpus.front() : -1);
  nlohmann::json shared = nlohmann::json::array();
  for (const auto& node : OffloadNode::Alive())
    shared.push_back({{"inode", InodeOf(node->arena().segment().fd())},
                      {"rank", node->rank()},
                      {"ranks", node->ranks()},
                      {"arena", ToJson(node->arena().Stats())}});
  return nlohmann::json{
      {"threads", threads}, {"arena", ToJson(engine->arena().Stats())}, {"shared", shared}}
      .dump();
}

}  // namespace tidegate
