#include "common/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;

Result<Config> Load(const std::map<std::string, std::string, std::less<>>& variables) {
  return LoadConfig([&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string Warnings(const std::vector<std::string>& names) {
  return UnknownSettingWarnings(names);
}

TEST(ConfigTest, DefaultsAreThoseOfTheStruct) {
  const Result<Config> config = Load({});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config.value().debug, LogLevel::kWarn);
  EXPECT_EQ(config.value().stats_file, "");
  EXPECT_EQ(config.value().stage_bytes, std::size_t{2} << 20);
  EXPECT_EQ(config.value().chunk_bytes, std::nullopt);
  EXPECT_EQ(config.value().stream_bytes, std::nullopt);
  EXPECT_EQ(config.value().shutdown_timeout, std::chrono::seconds(10));
  EXPECT_EQ(config.value().topo_file, "");
  EXPECT_EQ(config.value().topo_dump_file, "");
  EXPECT_EQ(config.value().node_id, "");
  EXPECT_TRUE(config.value().calibrate);
  EXPECT_EQ(config.value().cache_dir, "");
  EXPECT_EQ(config.value().default_devices, "none");
}

TEST(ConfigTest, ReadsEverySetting) {
  const Result<Config> config = Load({{"TIDEGATE_DEBUG", "TRACE"},
                                      {"TIDEGATE_STATS_FILE", "/tmp/stats.jsonl"},
                                      {"TIDEGATE_STAGE_BYTES", "64M"},
                                      {"TIDEGATE_CHUNK_BYTES", "96K"},
                                      {"TIDEGATE_STREAM_BYTES", "1.5GiB"},
                                      {"TIDEGATE_SHUTDOWN_TIMEOUT", "500ms"},
                                      {"TIDEGATE_TOPO_FILE", "/etc/topo.json"},
                                      {"TIDEGATE_TOPO_DUMP_FILE", "dump.json"},
                                      {"TIDEGATE_NODE_ID", "rack-1:node_2.b"},
                                      {"TIDEGATE_CALIBRATE", "0"},
                                      {"TIDEGATE_CACHE_DIR", "/var/cache/tidegate"},
                                      {"TIDEGATE_AG_MAX_OPS", "3"},
                                      {"TIDEGATE_AG_MAX_BYTES", "64M"},
                                      {"TIDEGATE_AG_WAIT", "block"},
                                      {"TIDEGATE_AG_LINKS", "node"},
                                      {"TIDEGATE_AG_RATE", "1.5G"},
                                      {"TIDEGATE_AG_BURST", "8M"},
                                      {"TIDEGATE_OFFLOAD_THREADS", "12"},
                                      {"TIDEGATE_DEFAULT", "cpu,cuda"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().debug, LogLevel::kTrace);
  EXPECT_EQ(config.value().stats_file, "/tmp/stats.jsonl");
  EXPECT_EQ(config.value().stage_bytes, std::size_t{64} << 20);
  EXPECT_EQ(config.value().chunk_bytes, std::size_t{96} << 10);
  EXPECT_EQ(config.value().stream_bytes, std::size_t{3} << 29);
  EXPECT_EQ(config.value().shutdown_timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(config.value().ag_max_ops, 3U);
  EXPECT_EQ(config.value().ag_max_bytes, std::size_t{64} << 20);
  EXPECT_FALSE(config.value().ag_auto);
  EXPECT_EQ(config.value().ag_wait, "block");
  EXPECT_EQ(config.value().ag_links, "node");
  EXPECT_EQ(config.value().ag_rate, std::size_t{3} << 29);
  EXPECT_EQ(config.value().ag_burst, std::size_t{8} << 20);
  EXPECT_EQ(config.value().offload_threads, 12U);
  EXPECT_EQ(config.value().topo_file, "/etc/topo.json");
  EXPECT_EQ(config.value().topo_dump_file, "dump.json");
  EXPECT_EQ(config.value().node_id, "rack-1:node_2.b");
  EXPECT_FALSE(config.value().calibrate);
  EXPECT_EQ(config.value().cache_dir, "/var/cache/tidegate");
  EXPECT_EQ(config.value().default_devices, "cpu,cuda");
}

TEST(ConfigTest, TheCacheIsWhereTheUserKeepsCaches) {
  EXPECT_EQ(Load({{"HOME", "/home/a"}}).value().cache_dir, "/home/a/.cache/tidegate");
  EXPECT_EQ(Load({{"HOME", "/home/a"}, {"XDG_CACHE_HOME", "/c"}}).value().cache_dir, "/c/tidegate");
  // The specification has relative paths ignored.
  EXPECT_EQ(Load({{"HOME", "/home/a"}, {"XDG_CACHE_HOME", "c"}}).value().cache_dir,
            "/home/a/.cache/tidegate");
  EXPECT_EQ(Load({{"HOME", "/home/a"}, {"TIDEGATE_CACHE_DIR", "here"}}).value().cache_dir, "here");
}

TEST(ConfigTest, BytesOfAllGathersMayBeAutomatic) {
  const Result<Config> config = Load({{"TIDEGATE_AG_MAX_BYTES", "auto"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config.value().ag_auto);
  EXPECT_FALSE(config.value().ag_max_bytes);
}

TEST(ConfigTest, ACountIsAWholeNumberInItsRange) {
  EXPECT_EQ(Load({{"TIDEGATE_AG_MAX_OPS", "1048576"}}).value().ag_max_ops, std::size_t{1} << 20);
  EXPECT_FALSE(Load({{"TIDEGATE_AG_MAX_OPS", "none"}}).value().ag_max_ops);
  for (const std::string bad : {"0", "-1", "1048577", "99999999999999999999", "1.5", "2x", "two"}) {
    const Result<Config> config = Load({{"TIDEGATE_AG_MAX_OPS", bad}});
    ASSERT_FALSE(config.ok()) << bad;
    EXPECT_THAT(config.status().message(), HasSubstr("TIDEGATE_AG_MAX_OPS=" + bad));
    EXPECT_THAT(config.status().message(), HasSubstr("1 to 1048576"));
  }
}

TEST(ConfigTest, ANodeIdIsAShortName) {
  EXPECT_TRUE(Load({{"TIDEGATE_NODE_ID", std::string(64, 'n')}}).ok());
  for (const std::string& bad : {std::string(65, 'n'), std::string("a b"), std::string("a\n")}) {
    const Result<Config> config = Load({{"TIDEGATE_NODE_ID", bad}});
    ASSERT_FALSE(config.ok());
    EXPECT_THAT(config.status().message(), HasSubstr("letters, digits"));
  }
}

TEST(ConfigTest, EmptyValueIsTheDefault) {
  for (const SettingInfo& setting : Settings()) {
    const Result<Config> config = Load({{std::string(setting.name), ""}});
    EXPECT_TRUE(config.ok()) << setting.name;
  }
}

TEST(ConfigTest, DefaultTextIsAcceptedAsValue) {
  for (const SettingInfo& setting : Settings()) {
    const Result<Config> config =
        Load({{std::string(setting.name), std::string(setting.default_value)}});
    EXPECT_TRUE(config.ok()) << config.status().message();
  }
}

TEST(ConfigTest, BoundsAreAccepted) {
  EXPECT_TRUE(Load({{"TIDEGATE_STAGE_BYTES", "64K"}, {"TIDEGATE_STREAM_BYTES", "0"}}).ok());
  EXPECT_TRUE(Load({{"TIDEGATE_STAGE_BYTES", "1G"}, {"TIDEGATE_STREAM_BYTES", "1T"}}).ok());
  EXPECT_TRUE(Load({{"TIDEGATE_SHUTDOWN_TIMEOUT", "0"}}).ok());
  EXPECT_TRUE(Load({{"TIDEGATE_SHUTDOWN_TIMEOUT", "1h"}}).ok());
}

struct BadValue {
  const char* name;
  const char* value;
  const char* range;
};

TEST(ConfigTest, BadValueNamesVariableValueRangeAndRemedy) {
  const std::vector<BadValue> bad_values = {
      {"TIDEGATE_DEBUG", "LOUD", "OFF, WARN, INFO, TRACE"},
      {"TIDEGATE_STAGE_BYTES", "65535", "64 KiB to 1 GiB"},
      {"TIDEGATE_STAGE_BYTES", "1025M", "64 KiB to 1 GiB"},
      {"TIDEGATE_STAGE_BYTES", "lots", "64 KiB to 1 GiB"},
      {"TIDEGATE_STREAM_BYTES", "-1", "0 B to 1 TiB"},
      {"TIDEGATE_SHUTDOWN_TIMEOUT", "61m", "0 s to 3600 s"},
      {"TIDEGATE_SHUTDOWN_TIMEOUT", "-1", "0 s to 3600 s"},
      {"TIDEGATE_DEFAULT", "gpu", "none, or cpu, cuda or both"},
      {"TIDEGATE_DEFAULT", "cpu,", "none, or cpu, cuda or both"},
      {"TIDEGATE_DEFAULT", "none,cpu", "none, or cpu, cuda or both"},
  };
  for (const BadValue& bad : bad_values) {
    const Result<Config> config = Load({{bad.name, bad.value}});
    ASSERT_FALSE(config.ok()) << bad.name << "=" << bad.value;
    EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(config.status().message(), AllOf(HasSubstr(std::string(bad.name) + "=" + bad.value),
                                                 HasSubstr(bad.range), HasSubstr("unset it")));
  }
}

TEST(ConfigTest, UnknownNameWarnsWithNearestSetting) {
  EXPECT_THAT(Warnings({"TIDEGATE_STAGE_BYTE"}),
              AllOf(HasSubstr("TIDEGATE_STAGE_BYTE "), HasSubstr("TIDEGATE_STAGE_BYTES\n")));
  EXPECT_THAT(Warnings({"TIDEGATE_STREM_BYTES"}), HasSubstr("TIDEGATE_STREAM_BYTES\n"));
  EXPECT_THAT(Warnings({"TIDEGATE_DEBUGG"}), HasSubstr("TIDEGATE_DEBUG\n"));
  EXPECT_THAT(Warnings({"TIDEGATE_SHUTDOWN_TIME"}), HasSubstr("TIDEGATE_SHUTDOWN_TIMEOUT\n"));
  EXPECT_THAT(Warnings({"TIDEGATE_STAGE"}), HasSubstr("TIDEGATE_STAGE_BYTES\n"));
}

TEST(ConfigTest, KnownAndForeignNamesDoNotWarn) {
  std::vector<std::string> names = {"PATH", "TIDEGATE", "tidegate_debug", "MY_TIDEGATE_DEBUG", ""};
  for (const SettingInfo& setting : Settings()) names.emplace_back(setting.name);
  EXPECT_EQ(Warnings(names), "");
}

TEST(ConfigTest, EachUnknownNameGetsItsLine) {
  const std::string warnings = Warnings({"TIDEGATE_A", "HOME", "TIDEGATE_B"});
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 2);
  EXPECT_THAT(warnings, AllOf(HasSubstr("TIDEGATE_A "), HasSubstr("TIDEGATE_B ")));
  EXPECT_THAT(warnings, Not(HasSubstr("HOME")));
}

const SettingState& Named(const std::vector<SettingState>& states, std::string_view name) {
  return *std::ranges::find(states, name,
                            [](const SettingState& state) { return state.info.name; });
}

TEST(ConfigTest, InspectionTellsSetFromUnsetAndGoodFromBad) {
  const std::vector<SettingState> states =
      InspectSettings([](std::string_view name) -> std::optional<std::string> {
        if (name == "TIDEGATE_DEBUG") return "";
        if (name == "TIDEGATE_STAGE_BYTES") return "64M";
        if (name == "TIDEGATE_STREAM_BYTES") return "lots";
        return std::nullopt;
      });
  ASSERT_EQ(states.size(), Settings().size());
  EXPECT_EQ(Named(states, "TIDEGATE_DEBUG").value, std::nullopt);
  EXPECT_EQ(Named(states, "TIDEGATE_STATS_FILE").value, std::nullopt);
  EXPECT_EQ(Named(states, "TIDEGATE_STAGE_BYTES").value, "64M");
  EXPECT_TRUE(Named(states, "TIDEGATE_STAGE_BYTES").status.ok());
  EXPECT_EQ(Named(states, "TIDEGATE_STREAM_BYTES").value, "lots");
  EXPECT_THAT(Named(states, "TIDEGATE_STREAM_BYTES").status.message(), HasSubstr("=lots"));
}

TEST(ConfigTest, ProcessEnvironmentIsThatOfTheProcess) {
  ASSERT_EQ(setenv("TIDEGATE_TEST_PROBE", "here", 1), 0);
  EXPECT_EQ(ProcessEnvironment()("TIDEGATE_TEST_PROBE"), "here");
  EXPECT_THAT(ProcessEnvironmentNames(), Contains("TIDEGATE_TEST_PROBE"));
  ASSERT_EQ(unsetenv("TIDEGATE_TEST_PROBE"), 0);
  EXPECT_EQ(ProcessEnvironment()("TIDEGATE_TEST_PROBE"), std::nullopt);
}

/// The documentation's row for `setting`.
std::string DocumentedRow(const SettingInfo& setting) {
  std::string row;
  const std::string name = "`" + std::string(setting.name) + "`";
  for (const std::string_view cell :
       {std::string_view(name), setting.type, setting.range, setting.default_value, setting.help}) {
    row += "| " + std::string(cell) + " ";
  }
  return row + "|";
}

TEST(ConfigTest, DocumentationListsExactlyTheSettings) {
  std::ifstream page(TIDEGATE_SOURCE_DIR "/docs/configuration.md");
  ASSERT_TRUE(page.is_open());
  std::vector<std::string> documented;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| `TIDEGATE_")) documented.push_back(line);
  }
  std::vector<std::string> expected;
  for (const SettingInfo& setting : Settings()) expected.push_back(DocumentedRow(setting));
  EXPECT_THAT(documented, ElementsAreArray(expected));
}

}  // namespace
}  // namespace tidegate
