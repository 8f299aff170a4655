#include "collectives/streaming.h"

#include <algorithm>

#include "collectives/requests.h"

namespace tidegate {

std::size_t BytesOfAllRanks(const CollectiveRequest& request, int ranks, bool in_place) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t in = TotalBytes(request.inputs);
  const std::size_t out = TotalBytes(request.outputs);
  switch (request.collective) {
    case Collective::kAllGather:
      return count * out + (in_place ? 0 : out);
    case Collective::kReduceScatter:
      return count * in + (in_place ? 0 : in);
    case Collective::kAllReduce:
      return count * (in_place ? in : in + out);
    case Collective::kBroadcast:
      return count * out;
    case Collective::kReduce:
      return count * in + (in_place ? 0 : in);
    // Of the root's blocks and of those of all ranks.
    case Collective::kGather:
      return 2 * count * in;
    case Collective::kScatter:
      return 2 * count * out;
    case Collective::kAllToAll:
      return count * (in + out);
    case Collective::kBarrier:
      break;
  }
  return 0;
}

bool WritesPastCaches(const CollectiveRequest& request, int ranks, bool in_place,
                      std::size_t least) {
  if (in_place && Reduces(request.collective)) return false;
  return BytesOfAllRanks(request, ranks, in_place) >= least;
}

bool IsInPlace(const CollectiveRequest& request) {
  return std::any_of(request.inputs.begin(), request.inputs.end(), [&](const Block& input) {
    return std::any_of(request.outputs.begin(), request.outputs.end(), [&](const Block& output) {
      return input.bytes > 0 && output.bytes > 0 && input.data == output.data;
    });
  });
}

}  // namespace tidegate
