#include "tests/unit/collectives/support/claimed_bytes.h"

#include <algorithm>

#include "collectives/verifier/verifier.h"

namespace tidegate::testing {
namespace {

/// Bytes of the blocks of `one`, its tensor cut into `parts` as for an execution.
std::vector<std::int64_t> SizesOf(const CollectiveCase& one, int parts) {
  std::vector<std::int64_t> sizes;
  for (const int count : one.counts) sizes.push_back(std::int64_t{4} * count);
  const bool is_cut = one.collective == Collective::kAllReduce ||
                      one.collective == Collective::kBroadcast ||
                      one.collective == Collective::kReduce;
  if (!is_cut || parts == 1) return sizes;
  const std::int64_t bytes = sizes.front();
  const std::int64_t part = ((bytes + parts - 1) / parts + 63) / 64 * 64;
  sizes.clear();
  for (int i = 0; i < parts; ++i)
    sizes.push_back(std::clamp<std::int64_t>(bytes - i * part, 0, part));
  return sizes;
}

std::uint64_t BytesOf(const std::vector<WireClaim>& claims,
                      const std::vector<std::int64_t>& sizes) {
  std::int64_t bytes = 0;
  for (const WireClaim& claim : claims)
    for (int i = 0; i < claim.count; ++i)
      bytes += sizes.size() == 1
                   ? sizes[0]
                   : sizes[static_cast<std::size_t>(claim.block + std::int64_t{i} * claim.stride)];
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

Result<std::vector<MovedBytes>> ClaimedBytes(const NamedAlgorithm& algorithm,
                                             const Placement& placement,
                                             const CollectiveCase& one) {
  const AlgorithmInput input{0, one.ranks, std::max(one.root, 0), &placement};
  const std::vector<std::int64_t> sizes = SizesOf(one, algorithm.build(input).parts);
  Result<Report> report = Verify({.collective = one.collective,
                                  .placement = &placement,
                                  .root = input.root,
                                  .chunk_bytes = 512,
                                  .sizes = sizes},
                                 algorithm.build.Programs(input));
  if (!report.ok()) return report.status();
  std::vector<MovedBytes> moved(static_cast<std::size_t>(one.ranks));
  const ClaimOf claims = algorithm.build.ClaimsFor(input);
  for (int rank = 0; rank < one.ranks; ++rank)
    moved[static_cast<std::size_t>(rank)].put = BytesOf(claims(rank), sizes);
  for (const RankBytes& put : report.value().put)
    if (placement.node_of(put.from) == placement.node_of(put.to))
      moved[static_cast<std::size_t>(put.from)].put += static_cast<std::uint64_t>(put.bytes);
  for (const RankBytes& read : report.value().read)
    moved[static_cast<std::size_t>(read.to)].read += static_cast<std::uint64_t>(read.bytes);
  return moved;
}

}  // namespace tidegate::testing
