#include "collectives/transport/shm/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

namespace tidegate {
namespace {

NodeRequest AnyRequest() {
  return MakeNodeRequest(RequestKind::kSegment, "tidegate-1-a", "tidegate-2-b",
                         {.words = {1, 0xfedcba9876543210}});
}

TEST(WireTest, ARequestArrivesAsItWasMade) {
  const NodeRequest request = AnyRequest();
  const Result<NodeRequest> parsed = ParseNodeRequest(BytesOf(request));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed.value().kind, RequestKind::kSegment);
  EXPECT_EQ(parsed.value().key, request.key);
  EXPECT_STREQ(parsed.value().sender, "tidegate-1-a");
  EXPECT_STREQ(parsed.value().receiver, "tidegate-2-b");
}

TEST(WireTest, EveryOtherLengthIsRefused) {
  const NodeRequest request = AnyRequest();
  for (std::size_t size = 0; size < sizeof(request); ++size)
    EXPECT_FALSE(ParseNodeRequest(BytesOf(request).first(size)).ok()) << size;
}

TEST(WireTest, AnotherVersionIsNamedWhateverItsLength) {
  NodeRequest request = AnyRequest();
  request.version = 7;
  for (const std::size_t size : {std::size_t{12}, sizeof(request)}) {
    const Status status = ParseNodeRequest(BytesOf(request).first(size)).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_NE(status.message().find("version 7"), std::string::npos) << status.message();
  }
}

TEST(WireTest, BrokenRequestsAreRefused) {
  NodeRequest magic = AnyRequest();
  magic.magic ^= 1;
  EXPECT_FALSE(ParseNodeRequest(BytesOf(magic)).ok());
  NodeRequest kind = AnyRequest();
  kind.kind = static_cast<RequestKind>(3);
  EXPECT_FALSE(ParseNodeRequest(BytesOf(kind)).ok());
  NodeRequest sender = AnyRequest();
  std::fill(std::begin(sender.sender), std::end(sender.sender), 'x');
  EXPECT_FALSE(ParseNodeRequest(BytesOf(sender)).ok());
  NodeRequest receiver = AnyRequest();
  std::fill(std::begin(receiver.receiver), std::end(receiver.receiver), 'x');
  EXPECT_FALSE(ParseNodeRequest(BytesOf(receiver)).ok());
}

TEST(WireTest, BrokenRepliesAreRefused) {
  EXPECT_TRUE(ParseNodeReply(BytesOf(NodeReply{})).ok());
  EXPECT_FALSE(ParseNodeReply(BytesOf(NodeReply{.magic = 0})).ok());
  EXPECT_FALSE(ParseNodeReply(BytesOf(NodeReply{.outcome = static_cast<Outcome>(9)})).ok());
  EXPECT_FALSE(ParseNodeReply(BytesOf(AnyRequest())).ok());
}

TEST(WireTest, KeysSurviveText) {
  const SegmentKey key{.words = {0x0000000000000001, 0xfedcba9876543210}};
  EXPECT_EQ(ToHex(key), "0000000000000001fedcba9876543210");
  SegmentKey read;
  ASSERT_TRUE(FromHex(ToHex(key), &read));
  EXPECT_EQ(read, key);
  for (const char* text :
       {"", "12", "0000000000000001fedcba987654321", "g000000000000001fedcba9876543210",
        "0000000000000001fedcba98765432100", "-000000000000001fedcba9876543210"})
    EXPECT_FALSE(FromHex(text, &read)) << text;
  EXPECT_NE(RandomKey().value(), RandomKey().value());
}

}  // namespace
}  // namespace tidegate
