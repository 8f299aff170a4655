#include "common/inline_vector.h"

#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace tidegate {
namespace {

using Texts = InlineVector<std::string, 2>;

/// Too long for the room inside a std::string, so that the sanitizer would see a leak.
std::string Text(int number) { return std::string(100, 'x') + std::to_string(number); }

Texts Filled(int count) {
  Texts texts;
  for (int i = 0; i < count; ++i) texts.push_back(Text(i));
  return texts;
}

void ExpectFilled(const Texts& texts, int count) {
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) EXPECT_EQ(texts[static_cast<std::size_t>(i)], Text(i));
}

bool IsInside(const Texts& texts) {
  const auto* const at = reinterpret_cast<const std::byte*>(texts.data());
  const auto* const self = reinterpret_cast<const std::byte*>(&texts);
  return at >= self && at < self + sizeof(texts);
}

class InlineVectorTest : public ::testing::TestWithParam<int> {};

TEST_P(InlineVectorTest, HoldsWhatWasPutIntoItInsideAsLongAsThatFits) {
  const Texts texts = Filled(GetParam());
  ExpectFilled(texts, GetParam());
  EXPECT_EQ(IsInside(texts), GetParam() <= 2);
}

TEST_P(InlineVectorTest, ACopyIsAnotherOne) {
  Texts texts = Filled(GetParam());
  Texts copy = texts;
  Texts assigned = Filled(3);
  assigned = texts;
  for (std::string& text : texts) text = "changed";
  ExpectFilled(copy, GetParam());
  ExpectFilled(assigned, GetParam());
}

TEST_P(InlineVectorTest, MovingLeavesAnEmptyOneThatCanBeUsed) {
  Texts texts = Filled(GetParam());
  Texts moved = std::move(texts);
  ExpectFilled(moved, GetParam());
  EXPECT_TRUE(texts.empty());  // NOLINT: that is the claim.
  Texts assigned = Filled(5);
  assigned = std::move(moved);
  ExpectFilled(assigned, GetParam());
  texts = Filled(1);
  ExpectFilled(texts, 1);
}

TEST_P(InlineVectorTest, ClearingEmptiesIt) {
  Texts texts = Filled(GetParam());
  texts.clear();
  EXPECT_TRUE(texts.empty());
  texts.push_back(Text(0));
  ExpectFilled(texts, 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, InlineVectorTest, ::testing::Values(0, 1, 2, 3, 9));

TEST(InlineVectorTest, TakesAListAndGivesASpan) {
  const InlineVector<int, 4> numbers = {1, 2, 3};
  const std::span<const int> span = numbers;
  EXPECT_EQ(std::accumulate(span.begin(), span.end(), 0), 6);
}

TEST(InlineVectorTest, HoldsWhatCanOnlyBeMoved) {
  InlineVector<std::unique_ptr<int>, 1> owned;
  for (int i = 0; i < 3; ++i) owned.push_back(std::make_unique<int>(i));
  const InlineVector<std::unique_ptr<int>, 1> moved = std::move(owned);
  EXPECT_EQ(*moved[2], 2);
}

}  // namespace
}  // namespace tidegate
