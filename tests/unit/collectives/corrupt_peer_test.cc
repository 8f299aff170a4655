// What a peer writes into the shared memory is checked before it is used.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "collectives/transport/segment_layout.h"
#include "tests/unit/collectives/support/local_group.h"

namespace tidegate {
namespace {

using testing::Barrier;
using testing::BlockOf;
using testing::LocalGroup;

TEST(CorruptPeerTest, APieceIsNoLongerThanAPieceCanBe) {
  constexpr std::uint64_t kTooLong = PairChannel::kPieceBytes + 1;
  LocalGroup group(2);
  std::vector<std::int32_t> values(PairChannel::kPieceBytes, 7);  // The receive lacks more.
  const auto receive = group[0].Receive(BlockOf(values), DataType::kInt32, 1, 3, {});
  PairChannel& channel = group.transport(1).Pair(1, 0);
  while (channel.posts_written.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  channel.piece_headers[0] = {channel.posts[0].id, kTooLong};
  channel.pieces_written.store(1, std::memory_order_release);
  group.transport(1).Wake();
  const Status outcome = receive->Wait(std::chrono::seconds(60));
  EXPECT_EQ(outcome.code(), StatusCode::kInternal);
  EXPECT_NE(outcome.message().find("rank 1"), std::string::npos) << outcome.message();
  EXPECT_NE(outcome.message().find("a piece of " + std::to_string(kTooLong)), std::string::npos)
      << outcome.message();
  EXPECT_EQ(values, std::vector<std::int32_t>(values.size(), 7));
}

TEST(CorruptPeerTest, ACallOfNoKnownKindDiffersFromEveryOther) {
  LocalGroup group(2);
  Fingerprint call;
  call.sequence = 1;
  call.collective = static_cast<Collective>(200);
  for (int lane = 0; lane < kLanes; ++lane) group.transport(1).Arrive(lane, 1, call, {});
  const auto barrier = group[0].Submit({Barrier()}, {});
  const Status outcome = barrier->Wait(std::chrono::seconds(60));
  EXPECT_EQ(outcome.code(), StatusCode::kMismatch);
  EXPECT_NE(outcome.message().find("unknown collective"), std::string::npos) << outcome.message();
}

}  // namespace
}  // namespace tidegate
