#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "common/status.h"

namespace tidegate::bench {

struct Options {
  std::vector<Collective> collectives = {Collective::kAllGather, Collective::kReduceScatter,
                                         Collective::kAllReduce, Collective::kBroadcast,
                                         Collective::kAllToAll,  Collective::kGather,
                                         Collective::kScatter,   Collective::kBarrier};
  std::vector<std::size_t> sizes = {8 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20};
  std::vector<int> ranks = {2, 4};
  int passes = 1;
  int rounds = 9;         ///< In each pass.
  int calls = 0;          ///< A loop; 0: by size.
  int warmups = 1;        ///< Calls before each loop.
  bool async = false;     ///< Submit and wait, on the progress thread.
  bool fresh = false;     ///< Write the inputs before each call.
  bool late = false;      ///< Time the last rank alone, which comes when the others wait.
  bool load = false;      ///< A busy loop on every core.
  bool rivals = true;     ///< The rooflines and the bare barrier as well.
  bool resident = false;  ///< Also with tensors in the group's shared memory.
  bool idle = false;      ///< What a group that does nothing costs, and no collective.
  std::string json;       ///< File of the samples; empty: none.
};

inline constexpr char kUsage[] =
    "tidegate_bench_node [COLLECTIVE ...] [options]: collectives at the level of C++, on one "
    "machine\n"
    "  --sizes 8K,64K,1M,16M,128M   bytes of all blocks together, or of the tensor\n"
    "  --ranks 2,4                  processes, one group each\n"
    "  --passes 1                   over all cells, whose rounds are put together: what disturbs "
    "a\n"
    "                               minute then disturbs some rounds of many cells, not all of "
    "one\n"
    "  --rounds 9                   in each pass; each has a loop of every variant\n"
    "  --calls 0                    of a loop; 0: 200, 61, 3 or 1 by size\n"
    "  --warmups 1                  calls before each loop, at most as many as in it\n"
    "  --async                      submit to the progress thread and wait\n"
    "  --fresh                      write the inputs before each call, untimed\n"
    "  --late                       the time of the last rank alone, for which the others wait\n"
    "  --resident                   also with tensors in the group's shared memory\n"
    "  --load                       with a busy loop on every core\n"
    "  --idle                       instead: the CPU time of groups that do nothing\n"
    "  --alone                      without the rooflines and the bare barrier\n"
    "  -J FILE                      every sample as JSON\n"
    "TIDEGATE_* settings count: docs/configuration.md.\n";

/// kInvalidArgument naming the argument and what would be right.
Result<Options> ParseOptions(std::span<const char* const> arguments);

}  // namespace tidegate::bench
