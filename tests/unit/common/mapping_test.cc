#include "common/mapping.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "common/ipc/memfd.h"

namespace tidegate {
namespace {

constexpr std::size_t kSize = 8192;

bool IsMapped(const void* page) {
  unsigned char resident = 0;
  return mincore(const_cast<void*>(page), 1, &resident) == 0;
}

TEST(MappingTest, TwoMappingsOfOneFileShareBytes) {
  Result<UniqueFd> file = CreateMemfd("test", kSize);
  ASSERT_TRUE(file.ok());
  const Result<Mapping> first = Mapping::Map(file.value().get(), kSize);
  const Result<Mapping> second = Mapping::Map(file.value().get(), kSize);
  ASSERT_TRUE(first.ok() && second.ok());
  file.value().Reset();
  first.value().data()[kSize - 1] = std::byte{42};
  EXPECT_EQ(second.value().data()[kSize - 1], std::byte{42});
  EXPECT_EQ(second.value().size(), kSize);
}

TEST(MappingTest, RefusesMoreThanTheFileHolds) {
  const Result<UniqueFd> file = CreateMemfd("test", kSize);
  ASSERT_TRUE(file.ok());
  const Result<Mapping> mapping = Mapping::Map(file.value().get(), kSize + 1);
  ASSERT_FALSE(mapping.ok());
  EXPECT_EQ(mapping.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(mapping.status().message(), ::testing::HasSubstr("8193"));
  EXPECT_FALSE(Mapping::Map(file.value().get(), 0).ok());
}

TEST(MappingTest, RefusesWhatCannotBeMapped) {
  EXPECT_EQ(Mapping::Map(-1, kSize).status().code(), StatusCode::kInternal);
}

TEST(MappingTest, UnmapsWhenItGoesOrIsAssigned) {
  const Result<UniqueFd> file = CreateMemfd("test", kSize);
  ASSERT_TRUE(file.ok());
  Mapping first = Mapping::Map(file.value().get(), kSize).value();
  const void* first_page = first.data();
  {
    Mapping second = Mapping::Map(file.value().get(), kSize).value();
    const void* second_page = second.data();
    first = std::move(second);
    EXPECT_FALSE(IsMapped(first_page));
    EXPECT_TRUE(IsMapped(second_page));
    EXPECT_EQ(first.data(), second_page);
    first_page = second_page;
  }
  EXPECT_TRUE(IsMapped(first_page));
  first = Mapping();
  EXPECT_FALSE(IsMapped(first_page));
}

}  // namespace
}  // namespace tidegate
