#pragma once

#include <functional>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/collectives/options.h"
#include "common/status.h"

namespace tidegate::bench {

/// Forks `ranks` processes, runs the cells of `options` on them and hands what they measure to
/// `report`, in this process, cell by cell. All of them have ended when it returns; the first that
/// fails ends the others. REQUIRES: no other thread in this process.
Status RunGroup(const Options& options, int ranks,
                const std::function<void(nlohmann::json cell)>& report);

/// A process on each of the cores this one may use that does nothing but compute, until destroyed.
class BusyCores {
 public:
  BusyCores();
  ~BusyCores();
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  std::vector<int> pids_;
};

}  // namespace tidegate::bench
