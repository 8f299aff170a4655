#include "collectives/transport/shm/rendezvous.h"
#include "collectives/transport/shm/wire.h"

#include <gtest/gtest.h>

#include <string>

namespace tidegate {
namespace {

ProcessIdentity AnyIdentity() {
  return {.boot_id = "boot",
          .pid_namespace = 11,
          .network_namespace = 12,
          .pid = 4711,
          .start_time = 99,
          .host = "a"};
}

SegmentDescription AnyDescription() {
  return {.creator = AnyIdentity(),
          .rank = 3,
          .address = "tidegate-4711-0123456789abcdef",
          .key = {.words = {5, 6}},
          .ranks = 4,
          .stage_bytes = 1 << 20};
}

TEST(RendezvousTest, APresenceSurvivesText) {
  const Presence presence =
      ParsePresence(Encode(Presence{.identity = AnyIdentity(), .left = false, .failure = {}}))
          .value();
  EXPECT_FALSE(presence.left);
  EXPECT_TRUE(presence.failure.ok());
  const ProcessIdentity& read = presence.identity;
  EXPECT_EQ(read.boot_id, "boot");
  EXPECT_EQ(read.pid_namespace, 11u);
  EXPECT_EQ(read.network_namespace, 12u);
  EXPECT_EQ(read.pid, 4711);
  EXPECT_EQ(read.start_time, 99u);
  EXPECT_EQ(read.host, "a");
}

TEST(RendezvousTest, APresenceTellsWhyARankWillNotCome) {
  const Presence left =
      ParsePresence(Encode(Presence{.identity = AnyIdentity(), .left = true, .failure = {}}))
          .value();
  EXPECT_TRUE(left.left);
  EXPECT_TRUE(left.failure.ok());
  EXPECT_EQ(left.identity.pid, 4711);

  const Presence failed =
      ParsePresence(Encode(Presence{.identity = AnyIdentity(),
                                    .left = false,
                                    .failure = Status(StatusCode::kMismatch, "a\nb=c")}))
          .value();
  EXPECT_FALSE(failed.left);
  EXPECT_EQ(failed.failure.code(), StatusCode::kMismatch);
  EXPECT_EQ(failed.failure.message(), "a b=c");
}

TEST(RendezvousTest, ADescriptionSurvivesText) {
  const SegmentDescription read = ParseSegmentDescription(Encode(AnyDescription())).value();
  EXPECT_EQ(read.creator.pid, 4711);
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.address, "tidegate-4711-0123456789abcdef");
  EXPECT_EQ(read.key, AnyDescription().key);
  EXPECT_EQ(read.ranks, 4);
  EXPECT_EQ(read.stage_bytes, 1u << 20);
}

TEST(RendezvousTest, TextThatLacksALineIsRefused) {
  const std::string text = Encode(AnyDescription());
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin) + 1;
    std::string without = text;
    without.erase(begin, end - begin);
    EXPECT_FALSE(ParseSegmentDescription(without).ok()) << without;
    begin = end;
  }
  EXPECT_FALSE(ParseSegmentDescription("").ok());
  EXPECT_FALSE(ParsePresence("pid=1\n").ok());
  const std::string present =
      Encode(Presence{.identity = AnyIdentity(), .left = false, .failure = {}});
  EXPECT_FALSE(ParsePresence(present + "failure=x\n").ok());
  EXPECT_FALSE(ParsePresence(present + "code=0\nfailure=x\n").ok());
}

TEST(RendezvousTest, NumbersMustBeNumbers) {
  std::string text = Encode(AnyDescription());
  text.replace(text.find("ranks=4"), 7, "ranks=4x");
  EXPECT_EQ(ParseSegmentDescription(text).status().code(), StatusCode::kInternal);
}

TEST(RendezvousTest, AnotherVersionIsNamed) {
  std::string text = Encode(AnyDescription());
  const std::string ours = "version=" + std::to_string(kWireVersion);
  text.replace(text.find(ours), ours.size(), "version=99");
  const Status status = ParseSegmentDescription(text).status();
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("version 99, this build speaks " + std::to_string(kWireVersion)),
            std::string::npos)
      << status.message();
}

TEST(RendezvousTest, TheFailureOfTheCreatorIsPassedOn) {
  const Status status =
      ParseSegmentDescription(
          EncodeFailure(2, "a", Status(StatusCode::kResourceExhausted, "no\nmemory=0")))
          .status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "rank 2 (host a) could not make the group's shared memory: no memory=0");
}

TEST(RendezvousTest, OnlyRanksUnderOneKernelAndInOneContainerShareMemory) {
  const ProcessIdentity ours = AnyIdentity();
  EXPECT_TRUE(CheckSameNode(AnyIdentity(), 3, ours, 0).ok());

  ProcessIdentity unknown = AnyIdentity();
  unknown.pid_namespace = unknown.network_namespace = 0;
  EXPECT_TRUE(CheckSameNode(unknown, 3, ours, 0).ok());

  ProcessIdentity machine = AnyIdentity();
  machine.boot_id = "other";
  machine.host = "b";
  EXPECT_EQ(
      CheckSameNode(machine, 3, ours, 0).message(),
      "rank 3 (host b) is on another machine than rank 0 (host a); groups across nodes need a "
      "build with the UCX transport");

  ProcessIdentity network = AnyIdentity();
  network.network_namespace = 77;
  EXPECT_NE(CheckSameNode(network, 3, ours, 0).message().find("another network namespace"),
            std::string::npos);
  ProcessIdentity pid = AnyIdentity();
  pid.pid_namespace = 77;
  EXPECT_EQ(CheckSameNode(pid, 3, ours, 0).code(), StatusCode::kUnsupported);
  EXPECT_NE(CheckSameNode(pid, 3, ours, 0).message().find("another pid namespace"),
            std::string::npos);
}

TEST(RendezvousTest, ALastWordKeepsCodeAndText) {
  const Status failure =
      ParseLastWord(EncodeLastWord(Status(StatusCode::kPeerLost, "rank 2 died\nin all_gather")));
  EXPECT_EQ(failure.code(), StatusCode::kPeerLost);
  EXPECT_EQ(failure.message(), "rank 2 died in all_gather");
}

TEST(RendezvousTest, TextThatIsNoLastWordIsRefused) {
  for (const char* text : {"", "version=1", "version=1\ncode=0\nfailure=x\n", "code=4\n"})
    EXPECT_EQ(ParseLastWord(text).code(), StatusCode::kInternal) << text;
}

}  // namespace
}  // namespace tidegate
