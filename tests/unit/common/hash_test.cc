#include "common/hash.h"

#include <gtest/gtest.h>

namespace tidegate {
namespace {

TEST(HashTest, IsFnv1a) {
  // Published values of FNV-1a, 64 bits.
  EXPECT_EQ(HashText(""), 0xcbf29ce484222325U);
  EXPECT_EQ(HashText("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(HashText("foobar"), 0x85944171f73967e8U);
}

}  // namespace
}  // namespace tidegate
