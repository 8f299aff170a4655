#include "collectives/executor/stage_slots.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

namespace tidegate {
namespace {

constexpr std::size_t kSlotBytes = 1024;
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

/// A lane that is in use: operations take all slots.
StageSlots InUse(int operations = 8) {
  StageSlots slots(kSlotBytes);
  for (int i = 0; i < operations; ++i) slots.Next({.chunks = 0});
  return slots;
}

TEST(StageSlotsTest, AnOperationGoesOnWhereTheOneBeforeEnded) {
  StageSlots slots = InUse();
  std::int64_t expected = 0;
  for (const std::int64_t chunks : {1, 2, 5, 1, 0, 7}) {
    slots.Next({.chunks = chunks, .in_order = true});
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, ++expected)
      EXPECT_EQ(slots.OffsetOf(chunk),
                static_cast<std::size_t>(expected) % kStageSlots * kSlotBytes);
  }
}

TEST(StageSlotsTest, TwoChunksAreFreeAfterAnyNumberOfThem) {
  for (std::int64_t before = 1; before <= 9; ++before) {
    StageSlots slots = InUse();
    slots.Next({.chunks = before, .in_order = true});
    slots.Next({.chunks = 2, .in_order = true});
    EXPECT_EQ(slots.first_awaited(), kNone) << before;
    slots.Next({.chunks = 6, .in_order = true});
    EXPECT_EQ(slots.first_awaited(), 2) << before;
  }
}

TEST(StageSlotsTest, WhatIsNotStagedInOrderMayAllBeReadYet) {
  StageSlots slots = InUse();
  slots.Next({.chunks = 3, .in_order = false});
  slots.Next({.chunks = 4, .in_order = false});
  EXPECT_EQ(slots.first_awaited(), 1);
  slots.Next({.chunks = 1, .in_order = true});
  EXPECT_EQ(slots.first_awaited(), 0);
}

TEST(StageSlotsTest, TheLastButOneIsDoneOnAllRanks) {
  StageSlots slots = InUse();
  slots.Next({.chunks = 9, .in_order = false});
  slots.Next({.chunks = 0});
  slots.Next({.chunks = 9, .in_order = false});
  EXPECT_EQ(slots.first_awaited(), kNone);
}

TEST(StageSlotsTest, ALaneBeginsWithTwoSlots) {
  StageSlots slots(kSlotBytes);
  std::set<std::size_t> taken;
  for (int operation = 1; operation < 8; ++operation) {
    slots.Next({.chunks = 1, .in_order = true});
    taken.insert(slots.SlotOf(0));
    EXPECT_EQ(slots.slots(), kChunksInFlight);
    EXPECT_EQ(slots.first_awaited(), kNone) << operation;
  }
  EXPECT_EQ(taken, (std::set<std::size_t>{0, 1}));
  slots.Next({.chunks = 1});
  EXPECT_EQ(slots.slots(), kStageSlots);
}

TEST(StageSlotsTest, TheFirstOperationAwaitsNobody) {
  StageSlots slots(kSlotBytes);
  slots.Next({.chunks = 9, .in_order = true});
  EXPECT_EQ(slots.first_awaited(), kNone);
  slots.Next({.chunks = 9, .in_order = true});
  EXPECT_EQ(slots.first_awaited(), 0);
}

TEST(StageSlotsTest, RanksThatDisagreeOnChunksAgreeOnTheNextOperation) {
  StageSlots few = InUse();
  StageSlots many = InUse();
  few.Next({.chunks = 1, .agreed = false});
  many.Next({.chunks = 7, .agreed = false});
  few.Next({.chunks = 1});
  many.Next({.chunks = 1});
  EXPECT_EQ(few.SlotOf(0), many.SlotOf(0));
}

TEST(StageSlotsTest, AfterARefusedOperationAllIsAwaited) {
  StageSlots refused = InUse();
  StageSlots also = InUse();
  refused.Skip();
  also.Skip();
  for (StageSlots* const slots : {&refused, &also}) slots->Next({.chunks = 1, .in_order = true});
  EXPECT_EQ(refused.first_awaited(), 0);
  EXPECT_EQ(refused.SlotOf(0), also.SlotOf(0));
}

TEST(StageSlotsTest, AShortChunkMovesOnOnceTheSlotsHaveComeRound) {
  StageSlots slots = InUse(64);
  EXPECT_TRUE(slots.has_places());
  std::vector<std::size_t> places;
  for (int i = 0; i < 3 * kStageSlots; ++i) {
    slots.Next({.chunks = 1, .in_order = true, .places = 2, .place_bytes = 256});
    places.push_back(slots.OffsetOf(0) - slots.SlotOf(0) * kSlotBytes);
    EXPECT_EQ(slots.SlotOf(0), static_cast<std::size_t>(i) % kStageSlots);
  }
  EXPECT_EQ(places, (std::vector<std::size_t>{0, 0, 0, 0, 256, 256, 256, 256, 0, 0, 0, 0}));
  slots.Next({.chunks = 1});
  EXPECT_EQ(slots.OffsetOf(0), 0U);
}

TEST(StageSlotsTest, AnIdleLaneHasNoPlaces) { EXPECT_FALSE(InUse(63).has_places()); }

}  // namespace
}  // namespace tidegate
