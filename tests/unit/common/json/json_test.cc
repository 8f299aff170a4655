#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/json/json_view.h"
#include "common/json/parse_json.h"

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  const Result<nlohmann::json> parsed = ParseJson(text, limits);
  if (parsed.ok()) return "accepted";
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return parsed.status().message();
}

TEST(JsonTest, ValuesOfAllKindsAreRead) {
  const std::string text = R"({"a":[1,-2,2.5,"x",true,null,{}],"b":{"c":[]}})";
  ASSERT_TRUE(ParseJson(text).ok());
  EXPECT_EQ(ParseJson(text).value().dump(), text);
  EXPECT_EQ(ParseJson("7").value(), 7);
}

TEST(JsonTest, MalformedTextIsNamedByLineAndColumn) {
  EXPECT_THAT(ErrorOf("{\n  \"a\": 1,\n  b\n}"), StartsWith("line 3, column 3: syntax error"));
  EXPECT_THAT(ErrorOf(""), StartsWith("line 1, column 0: "));
  EXPECT_THAT(ErrorOf("[1] 2"), StartsWith("line 1, column 5: "));
  EXPECT_THAT(ErrorOf("[NaN]"), StartsWith("line 1, column 2: "));
  EXPECT_THAT(ErrorOf("[\"\xff\"]"), HasSubstr("UTF-8"));
  EXPECT_THAT(ErrorOf("[1e999]"), StartsWith("line 1, column "));
}

TEST(JsonTest, BytesThatAreNoAsciiAreEscapedInMessages) {
  EXPECT_THAT(ErrorOf("\xff\xfe"), AllOf(StartsWith("line 1, column 1: "), HasSubstr("\\xff")));
  // The key is cut within a character.
  const std::string key = std::string(99, 'a') + "\xc3\xa4";
  EXPECT_THAT(ErrorOf("{\"" + key + "\": 1, \"" + key + "\": 2}"), HasSubstr("a\\xc3\" twice"));
  const nlohmann::json json = ParseJson("{\"" + key.substr(40) + "\": 1}").value();
  EXPECT_THAT(JsonView(json).CheckObject({"nodes"}).message(), HasSubstr("a\\xc3\"; known"));
  EXPECT_THAT(JsonView(json).at(key.substr(40)).path(), HasSubstr("a\\xc3"));
}

TEST(JsonTest, AKeyMayNotStandTwice) {
  EXPECT_THAT(ErrorOf(R"({"x":{"a":1,"b":2,"a":3}})"), HasSubstr("the key \"a\" twice"));
  EXPECT_THAT(ErrorOf(R"({"":1,"":2})"), HasSubstr("twice"));
  EXPECT_EQ(ErrorOf(R"([{"a":1},{"a":1}])"), "accepted");
}

TEST(JsonTest, DeepNestingIsRefusedBeforeItIsParsed) {
  const std::string deep(1 << 20, '[');
  EXPECT_EQ(ErrorOf(deep), "line 1, column 33: more than 32 objects and arrays inside each other");
  EXPECT_EQ(ErrorOf("[[[]]]", {.depth = 3}), "accepted");
  EXPECT_NE(ErrorOf("[[[]]]", {.depth = 2}), "accepted");
  EXPECT_EQ(ErrorOf(R"(["[[[[[\"[[[["])", {.depth = 1}), "accepted");
}

TEST(JsonTest, SizeIsLimited) {
  EXPECT_THAT(ErrorOf("[1,2,3]", {.bytes = 6}), HasSubstr("7 B; at most 6 B"));
}

TEST(JsonTest, OnlyRegularFilesOfTheSizeAreRead) {
  EXPECT_THAT(ReadTextFile("/dev/zero", 10).status().message(), HasSubstr("no regular file"));
  EXPECT_THAT(ReadTextFile("/no/such", 10).status().message(), HasSubstr("No such file"));
  const std::string path = ::testing::TempDir() + "/json_test.txt";
  std::ofstream(path) << "12345";
  EXPECT_EQ(ReadTextFile(path, 5).value(), "12345");
  EXPECT_THAT(ReadTextFile(path, 4).status().message(), HasSubstr("more than 4 B"));
}

TEST(JsonTest, ErrorsOfViewsNameThePath) {
  const nlohmann::json json =
      ParseJson(R"({"links":[{"rate":"fast","n":9,"big":18446744073709551615,"half":0.5}]})")
          .value();
  const JsonView root(json);
  const JsonView links = root.at("links");
  const JsonView link = links.at(0);
  double rate = 3;
  EXPECT_EQ(link.Read("rate", rate).message(),
            "$.links[0].rate: a number is wanted here, not \"fast\"");
  EXPECT_EQ(rate, 3);
  EXPECT_EQ(link.Read("gone", rate).message(), "$.links[0]: the key \"gone\" is missing");
  EXPECT_TRUE(link.ReadOptional("gone", rate).ok());
  std::int64_t number = 0;
  EXPECT_TRUE(link.Read("n", number, 0, 9).ok());
  EXPECT_EQ(number, 9);
  EXPECT_EQ(link.Read("n", number, 0, 8).message(),
            "$.links[0].n: a whole number from 0 to 8 is wanted here, not 9");
  EXPECT_FALSE(link.Read("big", number, INT64_MIN, INT64_MAX).ok());
  EXPECT_FALSE(link.Read("half", number, 0, 8).ok());
  std::string text;
  EXPECT_TRUE(link.Read("rate", text).ok());
  EXPECT_EQ(text, "fast");
  EXPECT_EQ(root.CheckObject({"nodes"}).message(), "$: unknown key \"links\"; known are nodes");
  EXPECT_EQ(link.CheckArray().message(), "$.links[0]: an array is wanted here, not an object");
}

}  // namespace
}  // namespace tidegate
