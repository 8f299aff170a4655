#include "collectives/algorithms/flow.h"

namespace tidegate {

std::vector<BlockRun> RunsOf(const std::vector<int>& blocks) {
  std::vector<BlockRun> runs;
  for (const int block : blocks) {
    if (!runs.empty()) {
      BlockRun& run = runs.back();
      if (run.count == 1 && block > run.first) run.stride = block - run.first;
      if (block == run.first + run.count * run.stride) {
        ++run.count;
        continue;
      }
      if (run.count == 1) run.stride = 1;
    }
    runs.push_back({block});
  }
  return runs;
}

int CountOf(const std::vector<BlockRun>& runs) {
  int count = 0;
  for (const BlockRun& run : runs) count += run.count;
  return count;
}

}  // namespace tidegate
