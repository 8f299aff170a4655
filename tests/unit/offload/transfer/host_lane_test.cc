#include "offload/transfer/host_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "tests/unit/common/child_process.h"

namespace tidegate::offload {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Bytes = std::vector<unsigned char>;

std::unique_ptr<HostLane> MakeLane(Direction direction, std::size_t capacity,
                                   HostLane::CopyFunction copy = nullptr) {
  Result<std::unique_ptr<HostLane>> lane = HostLane::Create(direction, capacity, std::move(copy));
  EXPECT_TRUE(lane.ok()) << lane.status().message();
  return std::move(lane).value();
}

Chunk Between(const Bytes& source, Bytes& destination) {
  return {.source = source.data(), .destination = destination.data(), .bytes = source.size()};
}

Bytes Pattern(std::size_t bytes, unsigned char first = 1) {
  Bytes pattern(bytes);
  std::iota(pattern.begin(), pattern.end(), first);
  return pattern;
}

CopyEvent Queue(Lane& lane, const Chunk& chunk) {
  const Result<CopyEvent> event = lane.Copy(chunk, kNoDeadline);
  EXPECT_TRUE(event.ok()) << event.status().message();
  return event.ok() ? event.value() : CopyEvent{};
}

TimePoint Soon() { return SteadyClock().Now() + milliseconds(20); }
/// For what comes at once unless it never comes.
TimePoint Late() { return SteadyClock().Now() + seconds(60); }

/// A copy function that holds each copy until it is let through.
class Gate {
 public:
  HostLane::CopyFunction Function() {
    return [this](const Chunk& chunk) {
      std::unique_lock lock(mutex_);
      ++arrived_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return allowed_ > 0; });
      --allowed_;
      std::memcpy(chunk.destination, chunk.source, chunk.bytes);
      return Status();
    };
  }
  void Allow(int copies) {
    const std::lock_guard lock(mutex_);
    allowed_ += copies;
    changed_.notify_all();
  }
  void AwaitArrivals(int copies) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= copies; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int allowed_ = 0;
};

TEST(HostLaneTest, CopiesOddSizesAtOddAddresses) {
  const auto lane = MakeLane(Direction::kDeviceToHost, 3);
  for (const std::size_t bytes : {0, 1, 2, 3, 63, 64, 65, 4095, 4097, 1 << 20}) {
    const Bytes source = Pattern(bytes + 1);
    Bytes destination(bytes + 3, 0xee);
    const CopyEvent event =
        Queue(*lane,
              {.source = source.data() + 1, .destination = destination.data() + 1, .bytes = bytes});
    ASSERT_TRUE(lane->Wait(event, Late()).ok());
    EXPECT_TRUE(std::equal(source.begin() + 1, source.end(), destination.begin() + 1)) << bytes;
    EXPECT_EQ(destination.front(), 0xee);
    EXPECT_EQ(destination[bytes + 1], 0xee);
  }
}

TEST(HostLaneTest, TheEventOfNothingIsDone) {
  const auto lane = MakeLane(Direction::kHostToDevice, 1);
  EXPECT_TRUE(lane->IsDone({}));
  EXPECT_TRUE(lane->Wait({}, Soon()).ok());
  EXPECT_EQ(lane->Wait({.number = 1}, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(lane->AwaitIdle(Soon()).ok());
}

TEST(HostLaneTest, CopiesInOrder) {
  const auto lane = MakeLane(Direction::kDeviceToHost, 4);
  // Each chunk copies what the one before has brought.
  const std::size_t steps = 5000;
  std::vector<std::uint64_t> cells(steps + 1);
  cells[0] = 42;
  CopyEvent last;
  for (std::size_t step = 0; step < steps; ++step)
    last = Queue(*lane, {.source = &cells[step], .destination = &cells[step + 1], .bytes = 8});
  ASSERT_TRUE(lane->Wait(last, Late()).ok());
  EXPECT_EQ(last.number, steps);
  EXPECT_THAT(cells, Each(42U));
  EXPECT_TRUE(lane->IsDone({.number = 1}));
}

TEST(HostLaneTest, AFullLaneHoldsItsCaller) {
  Gate gate;
  const auto lane = MakeLane(Direction::kDeviceToHost, 2, gate.Function());
  EXPECT_EQ(lane->capacity(), 2U);
  const Bytes source = Pattern(8);
  std::vector<Bytes> destinations(3, Bytes(8));
  const CopyEvent first = Queue(*lane, Between(source, destinations[0]));
  EXPECT_TRUE(lane->HasRoom());
  Queue(*lane, Between(source, destinations[1]));
  EXPECT_FALSE(lane->HasRoom());
  const Result<CopyEvent> refused = lane->Copy(Between(source, destinations[2]), Soon());
  EXPECT_EQ(refused.status().code(), StatusCode::kTimeout);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("device-to-host lane"), HasSubstr("room"), HasSubstr("0 of 2")));
  EXPECT_FALSE(lane->IsDone(first));

  gate.Allow(1);
  const CopyEvent third = Queue(*lane, Between(source, destinations[2]));
  EXPECT_TRUE(lane->IsDone(first));
  EXPECT_EQ(lane->Wait(third, Soon()).code(), StatusCode::kTimeout);
  gate.Allow(2);
  EXPECT_TRUE(lane->Wait(third, Late()).ok());
  EXPECT_THAT(destinations, Each(source));
}

TEST(HostLaneTest, BothDirectionsRunAtTheSameTime) {
  // Each copy of a lane waits for one of the other.
  std::atomic<int> arrived{0};
  const auto meet = [&](const Chunk& chunk) {
    const int turn = arrived.fetch_add(1) / 2;
    const TimePoint deadline = Late();
    while (arrived.load() < 2 * (turn + 1)) {
      if (SteadyClock().Now() > deadline) return Status(StatusCode::kTimeout, "alone");
      std::this_thread::yield();
    }
    std::memcpy(chunk.destination, chunk.source, chunk.bytes);
    return Status();
  };
  const auto in = MakeLane(Direction::kDeviceToHost, 4, meet);
  const auto out = MakeLane(Direction::kHostToDevice, 4, meet);
  const Bytes source = Pattern(100);
  Bytes host(100);
  Bytes device(100);
  CopyEvent last_in;
  CopyEvent last_out;
  for (int chunk = 0; chunk < 100; ++chunk) {
    last_in = Queue(*in, Between(source, host));
    last_out = Queue(*out, Between(source, device));
  }
  EXPECT_TRUE(in->Wait(last_in, Late()).ok());
  EXPECT_TRUE(out->Wait(last_out, Late()).ok());
  EXPECT_EQ(host, source);
  EXPECT_EQ(device, source);
}

TEST(HostLaneTest, ABadChunkIsRefusedAndTheLaneGoesOn) {
  const auto lane = MakeLane(Direction::kDeviceToHost, 2);
  const Bytes source = Pattern(8);
  Bytes destination(8);
  const Result<CopyEvent> bad =
      lane->Copy({.source = source.data(), .destination = nullptr, .bytes = 8}, kNoDeadline);
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  const CopyEvent good = Queue(*lane, Between(source, destination));
  EXPECT_EQ(good.number, 1U);
  EXPECT_TRUE(lane->Wait(good, Late()).ok());
}

TEST(HostLaneTest, AFailedCopyFailsItsChunkAndAllThatFollow) {
  Gate gate;
  int copies = 0;
  const auto lane =
      MakeLane(Direction::kHostToDevice, 8, [&, hold = gate.Function()](const Chunk& chunk) {
        if (Status held = hold(chunk); !held.ok()) return held;
        return ++copies == 2 ? Status(StatusCode::kResourceExhausted, "the device is full")
                             : Status();
      });
  const Bytes source = Pattern(8);
  std::vector<Bytes> destinations(3, Bytes(8));
  std::vector<CopyEvent> events;
  for (Bytes& destination : destinations)
    events.push_back(Queue(*lane, Between(source, destination)));
  gate.Allow(3);
  EXPECT_TRUE(lane->Wait(events[0], Late()).ok());
  const Status second = lane->Wait(events[1], Late());
  EXPECT_EQ(second.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(second.message(),
            "chunk 2 of the host-to-device lane (8 bytes) failed: the device is full");
  const Status third = lane->Wait(events[2], Late());
  EXPECT_EQ(third.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(third.message(), AllOf(HasSubstr("chunk 3 of the host-to-device lane was not copied"),
                                     HasSubstr("chunk 2"), HasSubstr("the device is full")));
  EXPECT_TRUE(lane->IsDone(events[2]));
  EXPECT_TRUE(lane->HasRoom());
  EXPECT_EQ(lane->Copy(Between(source, destinations[0]), Late()).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(lane->AwaitIdle(Late()).ok());
  EXPECT_TRUE(lane->Wait(events[0], Late()).ok());
  EXPECT_EQ(copies, 2);
  EXPECT_EQ(destinations[2], Bytes(8));
}

TEST(HostLaneTest, AnExceptionOfTheCopyFailsTheLane) {
  for (const bool is_standard : {true, false}) {
    const auto lane = MakeLane(Direction::kDeviceToHost, 1, [&](const Chunk&) -> Status {
      if (is_standard) throw std::runtime_error("no such device");
      throw 3;  // NOLINT(bugprone-std-exception-baseclass): such are caught, too
    });
    const Bytes source = Pattern(8);
    Bytes destination(8);
    const Status status = lane->Wait(Queue(*lane, Between(source, destination)), Late());
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(is_standard ? "threw: no such device" : "threw what"));
  }
}

TEST(HostLaneTest, AnAbortDuringACopyFailsItAtOnceAndIdleIsTheEndOfIt) {
  Gate gate;
  const auto lane = MakeLane(Direction::kDeviceToHost, 4, gate.Function());
  const Bytes source = Pattern(8);
  std::vector<Bytes> destinations(3, Bytes(8));
  gate.Allow(1);
  const CopyEvent first = Queue(*lane, Between(source, destinations[0]));
  const CopyEvent second = Queue(*lane, Between(source, destinations[1]));
  const CopyEvent third = Queue(*lane, Between(source, destinations[2]));
  gate.AwaitArrivals(2);

  std::thread waiter([&] {
    const Status status = lane->Wait(third, kNoDeadline);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  });
  lane->Abort(Status(StatusCode::kPeerLost, "rank 3 is gone"));
  lane->Abort(Status(StatusCode::kAborted, "again"));  // Too late to count.
  waiter.join();
  EXPECT_TRUE(lane->Wait(first, Late()).ok());
  EXPECT_THAT(lane->Wait(second, Late()).message(),
              AllOf(HasSubstr("chunk 2 of the device-to-host lane was not copied"),
                    HasSubstr("rank 3 is gone")));
  const Status busy = lane->AwaitIdle(Soon());
  EXPECT_EQ(busy.code(), StatusCode::kTimeout);
  EXPECT_THAT(busy.message(), HasSubstr("1 of 3 chunks"));
  gate.Allow(1);
  EXPECT_TRUE(lane->AwaitIdle(Late()).ok());
  EXPECT_EQ(lane->Wait(second, Late()).code(), StatusCode::kPeerLost);  // For good.
  EXPECT_EQ(destinations[2], Bytes(8));
}

TEST(HostLaneTest, AnAbortFreesACallerThatWaitsForRoom) {
  Gate gate;
  const Bytes source = Pattern(8);
  Bytes destination(8);
  const auto lane = MakeLane(Direction::kDeviceToHost, 1, gate.Function());
  Queue(*lane, Between(source, destination));
  gate.AwaitArrivals(1);
  std::thread caller([&] {
    Bytes other(8);
    const Result<CopyEvent> event = lane->Copy(Between(source, other), kNoDeadline);
    EXPECT_EQ(event.status().code(), StatusCode::kAborted);
    EXPECT_THAT(event.status().message(), HasSubstr("chunk 2"));
  });
  lane->Abort(Status());
  caller.join();
  gate.Allow(1);
}

TEST(HostLaneTest, AnIdleLaneCanBeAborted) {
  const auto lane = MakeLane(Direction::kDeviceToHost, 1);
  lane->Abort(Status(StatusCode::kAborted, "enough"));
  EXPECT_TRUE(lane->AwaitIdle(Late()).ok());
  const Bytes source = Pattern(8);
  Bytes destination(8);
  EXPECT_THAT(lane->Copy(Between(source, destination), Late()).status().message(),
              HasSubstr("enough"));
}

TEST(HostLaneTest, NothingIsCopiedAfterDestruction) {
  Gate gate;
  const Bytes source = Pattern(8);
  std::vector<Bytes> destinations(100, Bytes(8));
  auto lane = MakeLane(Direction::kHostToDevice, 100, gate.Function());
  for (Bytes& destination : destinations) Queue(*lane, Between(source, destination));
  gate.AwaitArrivals(1);
  std::thread destroyer([&] { lane.reset(); });
  gate.Allow(100);
  destroyer.join();
  EXPECT_EQ(destinations[0], source);  // It was being made, so it was waited for.
  destinations.clear();
}

TEST(HostLaneTest, AnyThreadMayWait) {
  const auto lane = MakeLane(Direction::kDeviceToHost, 3);
  const std::size_t chunks = 3000;
  std::vector<int> source(chunks);
  std::iota(source.begin(), source.end(), 0);
  std::vector<int> destination(chunks, -1);
  std::atomic<std::uint64_t> queued{0};
  std::vector<std::thread> waiters;
  for (int waiter = 0; waiter < 3; ++waiter) {
    waiters.emplace_back([&] {
      for (std::uint64_t number = 1; number <= chunks; ++number) {
        while (queued.load(std::memory_order_acquire) < number) std::this_thread::yield();
        EXPECT_TRUE(lane->Wait({.number = number}, Late()).ok());
        EXPECT_EQ(destination[number - 1], static_cast<int>(number) - 1);
      }
    });
  }
  for (std::size_t i = 0; i < chunks; ++i) {
    const CopyEvent event =
        Queue(*lane, {.source = &source[i], .destination = &destination[i], .bytes = sizeof(int)});
    queued.store(event.number, std::memory_order_release);
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(destination, source);
}

TEST(HostLaneTest, IsOfNoUseInAForkedChild) {
  auto lane = MakeLane(Direction::kDeviceToHost, 2);
  const Bytes source = Pattern(8);
  Bytes destination(8);
  ASSERT_TRUE(lane->Wait(Queue(*lane, Between(source, destination)), Late()).ok());
  ChildProcess child([&] {
    const Result<CopyEvent> event = lane->Copy(Between(source, destination), kNoDeadline);
    if (event.status().code() != StatusCode::kUnsupported) return 1;
    if (event.status().message().find("forked from") == std::string::npos) return 2;
    if (!lane->IsDone({.number = 2})) return 3;
    if (lane->Wait({.number = 2}, kNoDeadline).code() != StatusCode::kUnsupported) return 4;
    if (lane->AwaitIdle(kNoDeadline).code() != StatusCode::kUnsupported) return 5;
    lane->Abort(Status());
    lane.reset();
    return 0;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_TRUE(lane->Wait(Queue(*lane, Between(source, destination)), Late()).ok());
}

}  // namespace
}  // namespace tidegate::offload
