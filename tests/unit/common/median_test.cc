#include "common/median.h"

#include <gtest/gtest.h>

namespace tidegate {
namespace {

TEST(MedianTest, IsTheMiddleOneWhateverTheOrder) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({7}), 7);
}

TEST(MedianTest, IsTheMeanOfTheTwoInTheMiddleOfAnEvenNumber) { EXPECT_EQ(Median({8, 1, 4, 2}), 3); }

}  // namespace
}  // namespace tidegate
