#include "collectives/planner/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidegate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ChoicesTest, ShortAndFullNamesOfCollectivesAreRead) {
  const AlgorithmChoices choices =
      ParseAlgorithmChoices("ag:ring,reduce_scatter:column_bruck").value();
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices.at(Collective::kAllGather), "ring");
  EXPECT_EQ(choices.at(Collective::kReduceScatter), "column_bruck");
  EXPECT_TRUE(ParseAlgorithmChoices("").value().empty());
}

TEST(ChoicesTest, WhatIsNotThereIsRefusedWithWhatIs) {
  const auto error = [](std::string_view text) {
    return ParseAlgorithmChoices(text).status().message();
  };
  EXPECT_THAT(error("ring"), HasSubstr("\"ring\" is not of the form collective:algorithm"));
  EXPECT_THAT(error("xx:ring"), HasSubstr("there is no collective \"xx\"; there are ag ("));
  EXPECT_THAT(error("ag:rings"),
              HasSubstr("no algorithm \"rings\" for all_gather; there are direct, "));
  EXPECT_THAT(error("ag:ring,ag:direct"), HasSubstr("names all_gather twice"));
  EXPECT_THAT(error("ag:ring,,"), HasSubstr("\"\" is not of the form"));
}

TEST(ChoicesTest, WhatThePlacementDoesNotAllowIsRefusedWithWhatItDoes) {
  const AlgorithmChoices choices = ParseAlgorithmChoices("ag:column_ring").value();
  EXPECT_TRUE(CheckChoices(choices, Placement::Block(2, 2)).ok());
  const std::string message = CheckChoices(choices, Placement::OneNode(3)).message();
  EXPECT_THAT(message, HasSubstr("\"column_ring\" of all_gather cannot be run by 3 ranks on 1"));
  EXPECT_THAT(message, HasSubstr("possible: direct, ring, bruck, far_first"));
  EXPECT_THAT(message, Not(HasSubstr("recursive_doubling")));
}

}  // namespace
}  // namespace tidegate
