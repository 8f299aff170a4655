#include "common/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>

namespace tidegate {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using ::testing::HasSubstr;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

std::uint64_t Bytes(std::string_view text) {
  const Result<std::uint64_t> bytes = ParseBytes(text);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? bytes.value() : 0;
}

Nanoseconds Duration(std::string_view text) {
  const Result<Nanoseconds> duration = ParseDuration(text);
  EXPECT_TRUE(duration.ok()) << duration.status().message();
  return duration.ok() ? duration.value() : Nanoseconds(-1);
}

template <typename T>
void ExpectRejected(const Result<T>& result, std::string_view why) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr(why));
}

TEST(UnitsTest, PlainNumberIsBytes) {
  EXPECT_EQ(Bytes("0"), 0u);
  EXPECT_EQ(Bytes("4096"), 4096u);
  EXPECT_EQ(Bytes("512B"), 512u);
  EXPECT_EQ(Bytes("18446744073709551615"), kMax);
}

TEST(UnitsTest, SuffixesArePowersOf1024InAnySpelling) {
  for (const char* text : {"3K", "3KB", "3KiB", "3k", "3kib", "3 KiB"}) {
    EXPECT_EQ(Bytes(text), 3072u) << text;
  }
  EXPECT_EQ(Bytes("64M"), std::uint64_t{64} << 20);
  EXPECT_EQ(Bytes("2G"), std::uint64_t{2} << 30);
  EXPECT_EQ(Bytes("1T"), std::uint64_t{1} << 40);
}

TEST(UnitsTest, SizeMayBeFractionOfUnit) {
  EXPECT_EQ(Bytes("1.5GiB"), std::uint64_t{3} << 29);
  EXPECT_EQ(Bytes("0.25K"), 256u);
  ExpectRejected(ParseBytes("1.5"), "whole number");
  ExpectRejected(ParseBytes("1.5B"), "whole number");
}

TEST(UnitsTest, RejectsNegativeSize) {
  ExpectRejected(ParseBytes("-1"), "\"-1\"");
  ExpectRejected(ParseBytes("-4K"), "0 or more");
}

TEST(UnitsTest, RejectsTextThatIsNoSize) {
  for (const char* text : {"", " ", "M", "abc", ".5M", "inf", "nan", "+1", "0x10"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(UnitsTest, RejectsTrailingText) {
  for (const char* text : {"64MX", "64iB", "64KK", "64M ", "1.2.3M", "1e6", "64  M", "1BB"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(UnitsTest, RejectsOverflowingSize) {
  ExpectRejected(ParseBytes("18446744073709551616"), "too large");
  ExpectRejected(ParseBytes("16777216T"), "too large");
  ExpectRejected(ParseBytes("16777216.5T"), "too large");
  EXPECT_EQ(Bytes("16777215T"), std::uint64_t{16777215} << 40);
}

TEST(UnitsTest, DurationTakesSuffixes) {
  EXPECT_EQ(Duration("30"), std::chrono::seconds(30));
  EXPECT_EQ(Duration("2.5s"), milliseconds(2500));
  EXPECT_EQ(Duration("500ms"), milliseconds(500));
  EXPECT_EQ(Duration("10m"), minutes(10));
  EXPECT_EQ(Duration("1h"), minutes(60));
  EXPECT_EQ(Duration("7us"), Nanoseconds(7000));
  EXPECT_EQ(Duration("7ns"), Nanoseconds(7));
  EXPECT_EQ(Duration("0"), Nanoseconds(0));
}

TEST(UnitsTest, RejectsBadDurations) {
  ExpectRejected(ParseDuration("-1s"), "\"-1s\"");
  ExpectRejected(ParseDuration("soon"), "number");
  ExpectRejected(ParseDuration(""), "number");
  ExpectRejected(ParseDuration("3 weeks"), "unknown unit");
  ExpectRejected(ParseDuration("1S"), "unknown unit");
  ExpectRejected(ParseDuration("9999999999"), "too large");
}

TEST(UnitsTest, FormatsWithOneDecimalAtMost) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1 KiB");
  EXPECT_EQ(FormatBytes(3 << 19), "1.5 MiB");
  EXPECT_EQ(FormatBytes(std::uint64_t{1} << 40), "1 TiB");
  EXPECT_EQ(FormatBytes(kMax), "16777216 TiB");
}

TEST(UnitsTest, ParsesWhatItFormats) {
  for (int exponent = 0; exponent < 50; ++exponent) {
    const std::uint64_t bytes = std::uint64_t{1} << exponent;
    EXPECT_EQ(Bytes(FormatBytes(bytes)), bytes);
  }
}

TEST(UnitsTest, FormatsWholeMilliseconds) {
  EXPECT_EQ(FormatMilliseconds(std::chrono::seconds(2)), "2000 ms");
  EXPECT_EQ(FormatMilliseconds(std::chrono::microseconds(1999)), "1 ms");
  EXPECT_EQ(FormatMilliseconds(Nanoseconds(0)), "0 ms");
}

}  // namespace
}  // namespace tidegate
