#include "collectives/transport/shm/resident_heap.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/ipc/memfd.h"
#include "tests/unit/common/manual_clock.h"

namespace tidegate {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBegin = 3 * kPage;
constexpr std::size_t kBytes = 64 * kPage;

class ResidentHeapTest : public ::testing::Test {
 protected:
  ResidentHeapTest() {
    Result<UniqueFd> fd = CreateMemfd("tidegate-test", kBegin + kBytes);
    Result<Mapping> mapping = Mapping::Map(fd.value().get(), kBegin + kBytes);
    segment_ = std::make_shared<SharedSegment>(std::move(fd).value(), std::move(mapping).value());
    heap_ = ResidentHeap::Make(segment_, kBegin, kBytes, clock_,
                               [this](TimePoint when, std::function<void()> run) {
                                 later_.emplace_back(when, std::move(run));
                               });
  }

  std::shared_ptr<std::byte> Take(std::size_t bytes) {
    Result<std::shared_ptr<std::byte>> memory = heap_->Allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    return memory.ok() ? std::move(memory).value() : nullptr;
  }
  std::size_t OffsetOf(const std::shared_ptr<std::byte>& memory) const {
    return static_cast<std::size_t>(memory.get() - segment_->mapping.data()) - kBegin;
  }
  /// Bytes of pages that the file has.
  std::size_t Pages() const {
    struct stat file;
    EXPECT_EQ(fstat(segment_->fd.get(), &file), 0);
    return static_cast<std::size_t>(file.st_blocks) * 512;
  }
  /// Lets time pass, and what was put off to it run.
  void Pass(Nanoseconds by) {
    clock_.Advance(by);
    std::vector<std::pair<TimePoint, std::function<void()>>> due;
    due.swap(later_);
    for (auto& [when, run] : due) {
      if (when <= clock_.Now())
        run();
      else
        later_.emplace_back(when, std::move(run));
    }
  }

  testing::ManualClock clock_;
  std::vector<std::pair<TimePoint, std::function<void()>>> later_;
  std::shared_ptr<const SharedSegment> segment_;
  std::shared_ptr<ResidentHeap> heap_;
};

TEST_F(ResidentHeapTest, SizesAreRoundedUpToPagesAndNoFurther) {
  const auto odd = Take(5 * kPage + 1);
  EXPECT_EQ(OffsetOf(odd), 0u);
  EXPECT_EQ(heap_->usage().live, 6 * kPage);
  EXPECT_EQ(Pages(), 6 * kPage);
  const auto next = Take(1);
  EXPECT_EQ(OffsetOf(next), 6 * kPage);
  std::memset(odd.get(), 1, 5 * kPage + 1);
}

TEST_F(ResidentHeapTest, FreedNeighboursAreOnePart) {
  std::vector<std::shared_ptr<std::byte>> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(Take(16 * kPage));
  EXPECT_EQ(heap_->Allocate(1).status().code(), StatusCode::kResourceExhausted);
  parts[1] = nullptr;
  parts[3] = nullptr;
  // Two parts of 16 pages: no room for more in one piece.
  const Status full = heap_->Allocate(17 * kPage).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("the longest free part has 64 KiB"), std::string::npos)
      << full.message();
  parts[2] = nullptr;
  EXPECT_EQ(OffsetOf(Take(48 * kPage)), 16 * kPage);
}

TEST_F(ResidentHeapTest, FirstPartThatFitsIsTaken) {
  auto a = Take(8 * kPage);
  auto b = Take(2 * kPage);
  auto c = Take(4 * kPage);
  auto d = Take(2 * kPage);
  a = nullptr;
  c = nullptr;
  EXPECT_EQ(OffsetOf(Take(8 * kPage)), 0u);
  EXPECT_EQ(OffsetOf(Take(3 * kPage)), 0u);
}

TEST_F(ResidentHeapTest, StepsThatRepeatNeitherLoseNorGetPages) {
  // As FSDP2 does, layer by layer: a gathered layer, its gradients and their share.
  const auto step = [&] {
    std::shared_ptr<std::byte> previous;
    for (const std::size_t pages : {7u, 9u, 4u, 9u, 9u, 5u}) {
      std::shared_ptr<std::byte> gathered = Take(pages * kPage);
      std::memset(gathered.get(), 1, pages * kPage);
      previous = std::move(gathered);
    }
  };
  step();
  const std::size_t pages = Pages();
  EXPECT_LE(pages, 2 * heap_->usage().high_water);
  for (int i = 0; i < 100; ++i) {
    step();
    Pass(std::chrono::milliseconds(500));
    EXPECT_EQ(Pages(), pages);
  }
}

TEST_F(ResidentHeapTest, WhatIsNotUsedAgainGoesBackToTheMachine) {
  auto a = Take(20 * kPage);
  const auto b = Take(kPage);
  a = nullptr;
  EXPECT_EQ(Pages(), 21 * kPage);
  Pass(ResidentHeap::kKeepFor - std::chrono::milliseconds(1));
  EXPECT_EQ(Pages(), 21 * kPage);
  Pass(std::chrono::milliseconds(1));
  EXPECT_EQ(Pages(), kPage);
  EXPECT_EQ(heap_->usage().kept, 0u);
  EXPECT_TRUE(later_.empty());
  // And comes back as zeros.
  a = Take(20 * kPage);
  EXPECT_EQ(a.get()[0], std::byte{0});
}

TEST_F(ResidentHeapTest, FreedPagesNeverExceedTheHighWaterMark) {
  std::mt19937 random(7);
  std::vector<std::shared_ptr<std::byte>> live;
  for (int i = 0; i < 3000; ++i) {
    if (random() % 2 == 0 && !live.empty()) {
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
    } else {
      Result<std::shared_ptr<std::byte>> memory = heap_->Allocate(1 + random() % (9 * kPage));
      if (memory.ok()) live.push_back(std::move(memory).value());
    }
    const ResidentHeap::Usage usage = heap_->usage();
    ASSERT_LE(usage.kept, usage.high_water);
    ASSERT_EQ(usage.live + usage.kept, Pages());
    if (i % 100 == 0) Pass(std::chrono::seconds(1));
  }
  live.clear();
  EXPECT_EQ(heap_->usage().live, 0u);
  Pass(std::chrono::seconds(3));
  Pass(std::chrono::seconds(3));
  EXPECT_EQ(Pages(), 0u);
  EXPECT_EQ(OffsetOf(Take(kBytes)), 0u);
}

TEST_F(ResidentHeapTest, AllocationsDoNotOverlap) {
  std::mt19937 random(3);
  std::vector<std::pair<std::shared_ptr<std::byte>, std::size_t>> live;
  for (int i = 0; i < 500; ++i) {
    const std::size_t bytes = 1 + random() % (5 * kPage);
    Result<std::shared_ptr<std::byte>> memory = heap_->Allocate(bytes);
    if (memory.ok()) {
      std::memset(memory.value().get(), static_cast<int>(bytes % 251), bytes);
      live.emplace_back(std::move(memory).value(), bytes);
    } else {
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
    }
    for (const auto& [data, size] : live) {
      ASSERT_EQ(data.get()[0], static_cast<std::byte>(size % 251));
      ASSERT_EQ(data.get()[size - 1], static_cast<std::byte>(size % 251));
    }
  }
}

TEST_F(ResidentHeapTest, TensorsOutliveTheHeapAndKeepNothingAfterwards) {
  auto memory = Take(4 * kPage);
  auto other = Take(4 * kPage);
  other = nullptr;
  heap_->Retire();
  EXPECT_EQ(Pages(), 4 * kPage);
  heap_ = nullptr;
  std::memset(memory.get(), 1, 4 * kPage);
  memory = nullptr;
  EXPECT_EQ(Pages(), 0u);
}

TEST_F(ResidentHeapTest, ForkedProcessesGiveNothingBack) {
  auto memory = Take(4 * kPage);
  std::memset(memory.get(), 7, 4 * kPage);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = heap_->Allocate(1).status().code() == StatusCode::kAborted;
    memory = nullptr;
    heap_->Retire();
    heap_ = nullptr;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Pages(), 4 * kPage);
  EXPECT_EQ(memory.get()[4 * kPage - 1], std::byte{7});
}

}  // namespace
}  // namespace tidegate
