#include "offload/parallel_copy.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidegate::offload {
namespace {

using Bytes = std::vector<std::uint8_t>;

class ParallelCopyTest : public testing::TestWithParam<int> {};

TEST_P(ParallelCopyTest, CopiesEveryByteOfJobsOfAnySize) {
  ThreadPool pool(std::vector<ThreadPlace>(static_cast<std::size_t>(GetParam())));
  std::vector<Bytes> from, to;
  for (const std::size_t bytes : {0, 1, 4096, 0, 262143, 262144, 262145, 1000003, 7, 0})
    from.emplace_back(bytes);
  std::uint8_t next = 1;
  for (Bytes& each : from) {
    for (std::uint8_t& value : each) value = next++;
    to.emplace_back(each.size());
  }
  std::vector<CopyJob> jobs;
  for (std::size_t i = 0; i < from.size(); ++i)
    jobs.push_back({reinterpret_cast<std::byte*>(to[i].data()),
                    reinterpret_cast<const std::byte*>(from[i].data()), from[i].size()});
  ASSERT_TRUE(CopyInParallel(pool, jobs).ok());
  EXPECT_EQ(to, from);
}

TEST_P(ParallelCopyTest, NothingToCopyIsNoError) {
  ThreadPool pool(std::vector<ThreadPlace>(static_cast<std::size_t>(GetParam())));
  EXPECT_TRUE(CopyInParallel(pool, {}).ok());
  const CopyJob empty;
  EXPECT_TRUE(CopyInParallel(pool, std::span(&empty, 1)).ok());
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelCopyTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace tidegate::offload
