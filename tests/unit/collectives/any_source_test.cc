#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "tests/unit/collectives/support/local_group.h"

namespace tidegate {
namespace {

using testing::BlockOf;
using testing::LocalGroup;
using namespace std::chrono_literals;
using Values = std::vector<std::int32_t>;

/// A receive that is going on, with the memory that it fills.
struct Pending {
  std::unique_ptr<Values> values;
  std::shared_ptr<Operation> operation;

  const Status& Wait() const {
    operation->Wait(Nanoseconds(0)).ok();
    return operation->status();
  }
  std::int32_t value() const { return values->empty() ? -1 : values->front(); }
};

Pending Receive(Communicator& communicator, int peer, std::int64_t tag, std::size_t count = 1) {
  auto values = std::make_unique<Values>(count, -1);
  const auto operation = communicator.Receive(BlockOf(*values), DataType::kInt32, peer, tag, {});
  return {std::move(values), operation};
}

Pending Send(Communicator& communicator, int peer, std::int64_t tag, Values content) {
  auto values = std::make_unique<Values>(std::move(content));
  const auto operation = communicator.Send(BlockOf(*values), DataType::kInt32, peer, tag, {});
  return {std::move(values), operation};
}

void ExpectDone(const Pending& pending, int source, std::int32_t value) {
  EXPECT_TRUE(pending.Wait().ok()) << pending.Wait().message();
  EXPECT_EQ(pending.operation->source(), source);
  for (const std::int32_t found : *pending.values) ASSERT_EQ(found, value);
}

class AnySourceTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AnySourceTest, ::testing::Values(2, 3, 4, 5, 8));

TEST_P(AnySourceTest, EverybodyHearsFromEverybodyOnce) {
  const int ranks = GetParam();
  LocalGroup group(ranks);
  group.RunAll([&](int rank, Communicator& communicator) {
    std::vector<Pending> sends, receives;
    for (int i = 1; i < ranks; ++i)
      receives.push_back(Receive(communicator, kAnySource, 3, 70'001));
    for (int i = 1; i < ranks; ++i) {
      const int peer = (rank + i) % ranks;
      sends.push_back(Send(communicator, peer, 3, Values(70'001, rank * 100 + peer)));
    }
    std::vector<int> sources;
    for (const Pending& receive : receives) {
      ASSERT_TRUE(receive.Wait().ok()) << receive.Wait().message();
      sources.push_back(receive.operation->source());
      ExpectDone(receive, sources.back(), sources.back() * 100 + rank);
    }
    for (const Pending& send : sends) ExpectDone(send, -1, send.value());
    std::sort(sources.begin(), sources.end());
    std::vector<int> expected;
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank) expected.push_back(peer);
    EXPECT_EQ(sources, expected);
  });
}

TEST_P(AnySourceTest, MixedWithReceivesFromOneRankEachSendersMessagesComeInOrder) {
  const int ranks = GetParam();
  constexpr int kReceives = 60;
  constexpr int kTags = 2;
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    LocalGroup group(ranks);
    group.RunAll([&](int rank, Communicator& communicator) {
      if (rank != 0) {
        // More than can be taken, so that no order of matches starves a receive.
        std::vector<Pending> sends;
        for (int i = 0; i < kReceives; ++i)
          for (int tag = 0; tag < kTags; ++tag)
            sends.push_back(Send(communicator, 0, tag, {rank * 1000 + i}));
        for (const Pending& send : sends) ExpectDone(send, -1, send.value());
        return;
      }
      std::mt19937 random(seed);
      std::vector<Pending> receives[kTags];
      for (int i = 0; i < kReceives; ++i) {
        const bool any = random() % 3 == 0;
        const int peer = any ? kAnySource : 1 + static_cast<int>(random() % (ranks - 1u));
        const auto tag = static_cast<std::int64_t>(random() % kTags);
        receives[tag].push_back(Receive(communicator, peer, tag));
      }
      for (int tag = 0; tag < kTags; ++tag) {
        std::map<int, int> next;
        const auto take = [&](const Pending& receive) {
          ASSERT_TRUE(receive.Wait().ok()) << receive.Wait().message();
          const int source = receive.operation->source();
          EXPECT_EQ(receive.value(), source * 1000 + next[source]++) << "tag " << tag;
        };
        for (const Pending& receive : receives[tag]) take(receive);
        for (int peer = 1; peer < ranks; ++peer)
          while (next[peer] < kReceives) take(Receive(communicator, peer, tag));
      }
    });
  }
}

TEST(AnySourceOrderTest, AnEarlierReceiveFromTheSenderTakesItsFirstMessage) {
  LocalGroup group(3);
  const Pending from_one = Receive(group[0], 1, 0);
  const Pending from_any = Receive(group[0], kAnySource, 0);
  const Pending first = Send(group[1], 0, 0, {11});
  ExpectDone(from_one, 1, 11);
  EXPECT_FALSE(from_any.operation->done());
  const Pending second = Send(group[1], 0, 0, {12});
  ExpectDone(from_any, 1, 12);
}

TEST(AnySourceOrderTest, ALaterReceiveFromTheSenderGetsWhatTheOpenOneLeaves) {
  LocalGroup group(3);
  const Pending from_any = Receive(group[0], kAnySource, 0);
  const Pending from_one = Receive(group[0], 1, 0);
  const Pending first = Send(group[1], 0, 0, {11});
  ExpectDone(from_any, 1, 11);
  EXPECT_FALSE(from_one.operation->done());
  const Pending other = Send(group[2], 0, 0, {21});
  const Pending second = Send(group[1], 0, 0, {12});
  ExpectDone(from_one, 1, 12);
  ExpectDone(Receive(group[0], 2, 0), 2, 21);
}

TEST(AnySourceOrderTest, AnOpenReceiveHoldsUpNoOtherTag) {
  LocalGroup group(2);
  const Pending open = Receive(group[0], kAnySource, 5);
  const Pending sent = Send(group[1], 0, 6, {6});
  ExpectDone(Receive(group[0], 1, 6), 1, 6);
  const Pending other = Send(group[1], 0, 7, {7});
  ExpectDone(Receive(group[0], kAnySource, 7), 1, 7);
  EXPECT_FALSE(open.operation->done());
  ExpectDone(sent, -1, 6);
  const Pending last = Send(group[1], 0, 5, {5});
  ExpectDone(open, 1, 5);
}

TEST(AnySourceOrderTest, ReceivesFromAnySourceAreServedInTheirOrder) {
  LocalGroup group(4);
  std::vector<Pending> receives, sends;
  for (int i = 0; i < 3; ++i) receives.push_back(Receive(group[0], kAnySource, 0));
  for (const int sender : {3, 1, 2}) {
    sends.push_back(Send(group[sender], 0, 0, {sender}));
    ExpectDone(receives[sends.size() - 1], sender, sender);
  }
}

TEST(AnySourceOrderTest, MoreTagsThanAChannelHoldsAtOnce) {
  constexpr int kTags = 150;
  LocalGroup group(3);
  std::vector<Pending> receives, sends;
  for (int tag = 0; tag < kTags; ++tag) receives.push_back(Receive(group[0], kAnySource, tag));
  for (int tag = kTags - 1; tag >= 0; --tag)
    sends.push_back(Send(group[1 + tag % 2], 0, tag, {tag}));
  for (int tag = 0; tag < kTags; ++tag)
    ExpectDone(receives[static_cast<std::size_t>(tag)], 1 + tag % 2, tag);
}

TEST(AnySourceOrderTest, TwoRanksThatReceiveFromAnybodyBeforeTheySendDoNotBlockEachOther) {
  LocalGroup group(2);
  std::vector<Pending> receives, sends;
  for (int round = 0; round < 20; ++round)
    for (int rank = 0; rank < 2; ++rank) receives.push_back(Receive(group[rank], kAnySource, 0));
  for (int round = 0; round < 20; ++round)
    for (int rank = 0; rank < 2; ++rank) sends.push_back(Send(group[1 - rank], rank, 0, {round}));
  for (std::size_t i = 0; i < receives.size(); ++i)
    ExpectDone(receives[i], 1 - static_cast<int>(i % 2), static_cast<std::int32_t>(i / 2));
}

TEST(AnySourceFailureTest, AlonePeerlessOrSendingToAnybodyIsRefused) {
  LocalGroup alone(1), pair(2);
  EXPECT_EQ(Receive(alone[0], kAnySource, 0).Wait().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(pair[0], kAnySource, 0, {1}).Wait().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Receive(pair[0], -2, 0).Wait().code(), StatusCode::kInvalidArgument);
}

TEST(AnySourceFailureTest, OtherSizesFailBothSides) {
  LocalGroup group(2);
  const Pending receive = Receive(group[0], kAnySource, 0, 3);
  const Pending send = Send(group[1], 0, 0, {1, 2});
  EXPECT_EQ(receive.Wait().code(), StatusCode::kMismatch);
  EXPECT_EQ(send.Wait().code(), StatusCode::kMismatch);
  EXPECT_NE(receive.Wait().message().find("12 bytes"), std::string::npos)
      << receive.Wait().message();
  EXPECT_NE(receive.Wait().message().find("8 bytes"), std::string::npos);
}

TEST(AnySourceFailureTest, TheDeadlineNamesAllWhoMightHaveSent) {
  LocalGroup group(3, 100ms);
  const Pending receive = Receive(group[1], kAnySource, 4);
  EXPECT_EQ(receive.Wait().code(), StatusCode::kTimeout);
  const std::string text = receive.Wait().message();
  EXPECT_NE(text.find("tag 4, from any rank"), std::string::npos) << text;
  EXPECT_NE(text.find("missing: a send by any of rank 0 (pid 0, host loopback), rank 2 (pid 0"),
            std::string::npos)
      << text;
}

TEST(AnySourceFailureTest, AReceiveBehindAnOpenOneHasADeadlineToo) {
  LocalGroup group(3);
  const Pending open = Receive(group[0], kAnySource, 0);
  Values value(1);
  const auto behind = group[0].Receive(BlockOf(value), DataType::kInt32, 2, 0, {.timeout = 50ms});
  EXPECT_EQ(behind->Wait(Nanoseconds(0)).code(), StatusCode::kTimeout);
  EXPECT_NE(behind->status().message().find("missing: rank 2"), std::string::npos)
      << behind->status().message();
  EXPECT_EQ(open.Wait().code(), StatusCode::kTimeout);
}

TEST(AnySourceFailureTest, AnAbortEndsWhatIsOpen) {
  LocalGroup group(2);
  const Pending open = Receive(group[0], kAnySource, 0);
  const Pending behind = Receive(group[0], 1, 0);
  group[0].Abort("the test says so");
  EXPECT_EQ(open.Wait().code(), StatusCode::kAborted);
  EXPECT_EQ(behind.Wait().code(), StatusCode::kAborted);
}

/// Makes every rank join, so that it can leave.
void Join(LocalGroup& group) {
  group.RunAll([](int, Communicator& communicator) {
    const auto barrier = communicator.Submit({testing::Barrier()}, {.async = false});
    EXPECT_TRUE(barrier->status().ok()) << barrier->status().message();
  });
}

TEST(AnySourceFailureTest, WhoeverIsLeftMayStillSend) {
  LocalGroup group(3);
  Join(group);
  const Pending open = Receive(group[0], kAnySource, 0);
  const Pending behind = Receive(group[0], 1, 0);
  group[1].Shutdown();
  EXPECT_EQ(behind.Wait().code(), StatusCode::kPeerLost);
  EXPECT_NE(behind.Wait().message().find("rank 1"), std::string::npos);
  const Pending send = Send(group[2], 0, 0, {2});
  ExpectDone(open, 2, 2);
}

TEST(AnySourceFailureTest, AReceiveIsLostWhenAllOthersHaveLeft) {
  LocalGroup group(3);
  Join(group);
  const Pending sent = Send(group[2], 0, 0, {2});
  const Pending first = Receive(group[0], kAnySource, 0);
  ExpectDone(first, 2, 2);
  const Pending open = Receive(group[0], kAnySource, 0);
  const Pending behind = Receive(group[0], 2, 0);
  group[1].Shutdown();
  group[2].Shutdown();
  EXPECT_EQ(open.Wait().code(), StatusCode::kPeerLost);
  EXPECT_EQ(behind.Wait().code(), StatusCode::kPeerLost);
  EXPECT_NE(open.Wait().message().find("rank 1"), std::string::npos) << open.Wait().message();
  EXPECT_NE(open.Wait().message().find("rank 2"), std::string::npos);
  EXPECT_TRUE(group[0].health().ok()) << "the rest of the group could go on";
}

TEST(AnySourceTrustTest, AnOfferThatNobodyAskedForFailsTheGroup) {
  LocalGroup group(2);
  PairChannel& channel = group.transport(1).Pair(1, 0);
  channel.offers[0] = {.tag = 9, .number = 0};
  channel.offers_written = 1;
  const Pending open = Receive(group[0], kAnySource, 0);
  EXPECT_EQ(open.Wait().code(), StatusCode::kInternal);
  EXPECT_NE(open.Wait().message().find("nobody asked"), std::string::npos);
}

TEST(AnySourceTrustTest, AnOfferOfALaterSendThanAskedForFailsTheGroup) {
  LocalGroup group(2);
  const Pending open = Receive(group[0], kAnySource, 9);
  PairChannel& channel = group.transport(1).Pair(1, 0);
  channel.offers[0] = {.tag = 9, .number = 1};
  channel.offers_written = 1;
  group.transport(1).Wake();
  EXPECT_EQ(open.Wait().code(), StatusCode::kInternal);
}

TEST(AnySourceTrustTest, MoreOffersThanTheRingHoldsFailTheGroup) {
  LocalGroup group(2);
  group.transport(1).Pair(1, 0).offers_written = PairChannel::kOffers + 1;
  EXPECT_EQ(Receive(group[0], kAnySource, 0).Wait().code(), StatusCode::kInternal);
}

TEST(AnySourceTrustTest, AnAnnouncementOfUnknownKindFailsTheGroup) {
  LocalGroup group(2);
  PairChannel& channel = group.transport(1).Pair(0, 1);
  channel.posts[0] = {.tag = 0, .number = 0, .bytes = 4, .id = 1, .dtype = 0, .kind = 7};
  channel.posts_written = 1;
  const Pending send = Send(group[0], 1, 0, {1});
  EXPECT_EQ(send.Wait().code(), StatusCode::kInternal);
  EXPECT_NE(send.Wait().message().find("unknown kind 7"), std::string::npos);
}

}  // namespace
}  // namespace tidegate
