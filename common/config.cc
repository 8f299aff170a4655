#include "common/config.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/units.h"

namespace tidegate {
namespace {

constexpr std::string_view kPrefix = "TIDEGATE_";
/// Switches of the test suites, which no program reads.
constexpr std::string_view kTestPrefix = "TIDEGATE_TEST_";

/// One setting. `set` reads a non-empty value into a Config; the message of its error says only
/// what is wrong with the value, LoadConfig adds the rest.
struct Setting {
  std::string_view name;
  std::string_view type;
  std::string range;
  std::string default_value;
  std::string_view help;
  std::function<Status(std::string_view value, Config& config)> set;
};

Status OutOfRange() { return Status(StatusCode::kInvalidArgument, "it is out of range"); }

/// What Bytes and BytesOr have in common: `field` is a number of bytes, optional or not.
template <typename Field>
Setting BytesSetting(std::string_view name, Field Config::* field, std::uint64_t least,
                     std::uint64_t most, std::string default_value, std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    const Result<std::uint64_t> bytes = ParseBytes(value);
    if (!bytes.ok()) return bytes.status();
    if (bytes.value() < least || bytes.value() > most) return OutOfRange();
    config.*field = bytes.value();
    return Status();
  };
  return {name, "bytes", FormatBytes(least) + " to " + FormatBytes(most), std::move(default_value),
          help, set};
}

Setting Bytes(std::string_view name, std::size_t Config::* field, std::uint64_t least,
              std::uint64_t most, std::string_view help) {
  return BytesSetting(name, field, least, most, FormatBytes(Config{}.*field), help);
}

/// Found out where it is not set, or set to `otherwise`, which says how.
Setting BytesOr(std::string_view otherwise, std::string_view name,
                std::optional<std::size_t> Config::* field, std::uint64_t least, std::uint64_t most,
                std::string_view help) {
  Setting setting = BytesSetting(name, field, least, most, std::string(otherwise), help);
  setting.set = [=, set_bytes = std::move(setting.set)](std::string_view value, Config& config) {
    (config.*field).reset();
    return value == otherwise ? Status() : set_bytes(value, config);
  };
  return setting;
}

/// A number of things; none where it is not set, or set to `otherwise`.
Setting CountOr(std::string_view otherwise, std::string_view name,
                std::optional<std::size_t> Config::* field, std::size_t least, std::size_t most,
                std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    (config.*field).reset();
    if (value == otherwise) return Status();
    std::size_t count = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
    if (error == std::errc::result_out_of_range) return OutOfRange();
    if (error != std::errc() || end != value.data() + value.size())
      return Status(StatusCode::kInvalidArgument, "it is no whole number");
    if (count < least || count > most) return OutOfRange();
    config.*field = count;
    return Status();
  };
  return {
      name, "count", std::to_string(least) + " to " + std::to_string(most), std::string(otherwise),
      help, set};
}

/// The same setting, which may be "auto", too.
Setting OrAuto(Setting setting, bool Config::* is_auto) {
  setting.range += ", auto";
  setting.set = [=, set = std::move(setting.set)](std::string_view value, Config& config) {
    config.*is_auto = value == "auto";
    return config.*is_auto ? Status() : set(value, config);
  };
  return setting;
}

std::string FormatSeconds(Nanoseconds duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

Setting Duration(std::string_view name, Nanoseconds Config::* field, Nanoseconds least,
                 Nanoseconds most, std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    const Result<Nanoseconds> duration = ParseDuration(value);
    if (!duration.ok()) return duration.status();
    if (duration.value() < least || duration.value() > most) return OutOfRange();
    config.*field = duration.value();
    return Status();
  };
  return {name,
          "seconds",
          FormatSeconds(least) + " to " + FormatSeconds(most),
          FormatSeconds(Config{}.*field),
          help,
          set};
}

Setting Path(std::string_view name, std::string Config::* field, std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    config.*field = value;
    return Status();
  };
  return {name, "path", "any", "none", help, set};
}

/// Letters, digits and . : _ - without blanks.
Setting Name(std::string_view name, std::string Config::* field, std::size_t most,
             std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    const auto is_allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             std::string_view("._:-").find(c) != std::string_view::npos;
    };
    if (value.size() > most) return OutOfRange();
    if (!std::ranges::all_of(value, is_allowed))
      return Status(StatusCode::kInvalidArgument, "it has other characters");
    config.*field = value;
    return Status();
  };
  return {name,   "text", "at most " + std::to_string(most) + " letters, digits and . : _ -",
          "none", help,   set};
}

Setting Switch(std::string_view name, bool Config::* field, std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    if (value != "0" && value != "1")
      return Status(StatusCode::kInvalidArgument, "it is none of the choices");
    config.*field = value == "1";
    return Status();
  };
  return {name, "choice", "0, 1", Config{}.*field ? "1" : "0", help, set};
}

/// One of a few words.
Setting OneOf(std::string_view name, std::string Config::* field,
              const std::vector<std::string_view>& words, std::string_view help) {
  std::string range;
  for (const std::string_view word : words)
    range += (range.empty() ? "" : ", ") + std::string(word);
  auto set = [=](std::string_view value, Config& config) {
    if (std::find(words.begin(), words.end(), value) == words.end())
      return Status(StatusCode::kInvalidArgument, "it is none of the choices");
    config.*field = value;
    return Status();
  };
  return {name, "choice", range, Config{}.*field, help, set};
}

/// Read further where the algorithms are known.
Setting Choices(std::string_view name, std::string Config::* field, std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    config.*field = value;
    return Status();
  };
  return {name, "choices", "collective:algorithm with commas between them", "none", help, set};
}

/// "none", or device types separated by commas.
Setting Devices(std::string_view name, std::string Config::* field, std::string_view help) {
  auto set = [=](std::string_view value, Config& config) {
    for (std::string_view rest = value; value != "none";) {
      const std::size_t comma = rest.find(',');
      const std::string_view device = rest.substr(0, comma);
      if (device != "cpu" && device != "cuda")
        return Status(StatusCode::kInvalidArgument,
                      "\"" + std::string(device) + "\" is no device type that tidegate serves");
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    config.*field = value;
    return Status();
  };
  return {name, "devices", "none, or cpu, cuda or both with a comma between them", Config{}.*field,
          help, set};
}

struct LevelName {
  std::string_view name;
  LogLevel level;
};
constexpr std::array<LevelName, 4> kLevels = {{{"OFF", LogLevel::kOff},
                                               {"WARN", LogLevel::kWarn},
                                               {"INFO", LogLevel::kInfo},
                                               {"TRACE", LogLevel::kTrace}}};

Setting Level(std::string_view name, LogLevel Config::* field, std::string_view help) {
  std::string range;
  std::string default_value;
  for (const LevelName& level : kLevels) {
    range += (range.empty() ? "" : ", ") + std::string(level.name);
    if (level.level == Config{}.*field) default_value = level.name;
  }
  auto set = [=](std::string_view value, Config& config) {
    for (const LevelName& level : kLevels) {
      if (level.name == value) {
        config.*field = level.level;
        return Status();
      }
    }
    return Status(StatusCode::kInvalidArgument, "it is none of the choices");
  };
  return {name, "choice", range, default_value, help, set};
}

const std::vector<Setting>& Table() {
  constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  static const std::vector<Setting> table = {
      Level("TIDEGATE_DEBUG", &Config::debug,
            "Least severe messages to log: WARN for trouble, INFO for one line a group, TRACE for "
            "one line an operation."),
      Path("TIDEGATE_STATS_FILE", &Config::stats_file,
           "File to which each rank appends one line of JSON with its statistics at shutdown."),
      Bytes("TIDEGATE_STAGE_BYTES", &Config::stage_bytes, 64 * kKiB, kGiB,
            "Shared staging memory of each rank in each lane of a group."),
      BytesOr(
          "automatic", "TIDEGATE_HEAP_BYTES", &Config::heap_bytes, 0, 1024 * kGiB * 64,
          "Shared memory that each rank may take in each group for tensors which all ranks read "
          "where they lie (tidegate.empty, allocate_tensor). Costs address space alone until "
          "tensors are there, by default as much as the machine's memory, at most 64 GiB, divided "
          "by "
          "the ranks; 0 for none. What the rank that comes first has counts for all."),
      BytesOr("measured", "TIDEGATE_CHUNK_BYTES", &Config::chunk_bytes, 4 * kKiB, kGiB,
              "Longest chunk in which tensors pass through the stage. One rank of a group "
              "decides."),
      BytesOr("measured", "TIDEGATE_STREAM_BYTES", &Config::stream_bytes, 0, 1024 * kGiB,
              "Calls whose tensors have at least this size on all ranks together write results "
              "past the caches (non-temporal stores), unless they reduce in place. One rank of a "
              "group decides."),
      BytesOr(
          "automatic", "TIDEGATE_SINGLE_COPY_BYTES", &Config::single_copy_bytes, 0, 1024 * kGiB,
          "All-gathers and all-to-alls from 64 KiB to this size read tensors where they lie in the "
          "processes of other ranks (process_vm_readv), where "
          "the kernel allows that; 0 for none. By default 16 MiB where that is measured to take "
          "less, but none with more ranks than processors that they may use, all together. One "
          "rank of a group decides."),
      CountOr("none", "TIDEGATE_AG_MAX_OPS", &Config::ag_max_ops, 1, 1 << 20,
              "All-gathers that may be in flight at a time, in all groups of this process together "
              "(docs/rate_limit.md)."),
      OrAuto(BytesOr("none", "TIDEGATE_AG_MAX_BYTES", &Config::ag_max_bytes, 4 * kKiB, 1024 * kGiB,
                     "Bytes of their outputs that may be in flight at a time; auto for as few "
                     "all-gathers as cost no speed."),
             &Config::ag_auto),
      OneOf("TIDEGATE_AG_WAIT", &Config::ag_wait, {"queue", "block"},
            "What becomes of an async all-gather that has to wait for room: queue lets the call "
            "return and starts it later, block makes the calling thread wait."),
      BytesOr("none", "TIDEGATE_AG_RATE", &Config::ag_rate, 1024 * kKiB, 1024 * kGiB,
              "Bytes a second that they may read from other ranks."),
      BytesOr(
          "automatic", "TIDEGATE_AG_BURST", &Config::ag_burst, 4 * kKiB, 1024 * kGiB,
          "Bytes of them that may be read at once after a pause: by default what TIDEGATE_AG_RATE "
          "gives in 10 ms, at least 1 MiB."),
      OneOf("TIDEGATE_AG_LINKS", &Config::ag_links, {"all", "node", "net"},
            "The links on which they count: all, those to ranks of the node, or those to ranks of "
            "others (no group has any yet)."),
      CountOr(
          "automatic", "TIDEGATE_OFFLOAD_THREADS", &Config::offload_threads, 1, 1024,
          "Threads of a rank's optimizer step, its own among them, whatever OMP_NUM_THREADS and "
          "a cgroup's quota say; else an equal part of the node's cores (docs/offload.md)."),
      Duration("TIDEGATE_SHUTDOWN_TIMEOUT", &Config::shutdown_timeout, Nanoseconds::zero(),
               std::chrono::hours(1),
               "How long shutdown waits for unfinished operations before it aborts them; 0 aborts "
               "them at once."),
      Choices(
          "TIDEGATE_ALGO", &Config::algo,
          "Algorithms to use instead of those that the planner would choose, by collective: "
          "ag:ring,rs:direct. A name that is not there is answered with those that are. Equal on "
          "all ranks."),
      Path("TIDEGATE_TOPO_FILE", &Config::topo_file,
           "JSON description of the machines (docs/topology.md): used instead of what is "
           "discovered, or, if it is partial, merged over that. One rank of a group reads it."),
      Path("TIDEGATE_TOPO_DUMP_FILE", &Config::topo_dump_file,
           "File to which one rank of the job writes the topology that is used, in that form."),
      Name("TIDEGATE_NODE_ID", &Config::node_id, 64,
           "Name of this rank's node: ranks with other names are on other nodes, even on one "
           "machine."),
      Switch("TIDEGATE_CALIBRATE", &Config::calibrate,
             "Whether the planner's prices, the length of chunks and the kind of stores come from "
             "what is measured on this machine (half a second, once a machine) or, with 0, from "
             "declared values. Never changes a bit of a result."),
      Path("TIDEGATE_CACHE_DIR", &Config::cache_dir,
           "Folder in which measured rates are kept. By default tidegate in $XDG_CACHE_HOME, else "
           "in ~/.cache."),
      Devices("TIDEGATE_DEFAULT", &Config::default_devices,
              "Device types whose default backend is tidegate: what a group gets that is made "
              "without naming a backend. Read when torch is imported."),
  };
  return table;
}

/// Levenshtein distance: insertions, deletions and substitutions that turn `a` into `b`.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

/// Reads the value that `environment` has for `setting`, if any, into `config`.
Status Apply(const Setting& setting, const std::optional<std::string>& value, Config& config) {
  if (!value || value->empty()) return Status();
  Status status = setting.set(*value, config);
  if (status.ok()) return status;
  return Status(StatusCode::kInvalidArgument,
                std::string(setting.name) + "=" + *value + " is not accepted: " + status.message() +
                    "; range (" + std::string(setting.type) + "): " + setting.range +
                    "; correct it, or unset it for the default, " + setting.default_value);
}

/// As the XDG base directory specification has it; empty for a user without a home.
std::string DefaultCache(const Environment& environment) {
  const std::string cache = environment("XDG_CACHE_HOME").value_or("");
  if (cache.starts_with('/')) return cache + "/tidegate";
  const std::string home = environment("HOME").value_or("");
  return home.starts_with('/') ? home + "/.cache/tidegate" : "";
}

Result<Config> LoadProcessConfig() {
  Result<Config> config = LoadConfig(ProcessEnvironment());
  if (config.ok()) SetLogLevel(config.value().debug);
  const std::string warnings = UnknownSettingWarnings(ProcessEnvironmentNames());
  for (std::size_t begin = 0; begin < warnings.size();) {
    const std::size_t end = warnings.find('\n', begin);
    Log(LogLevel::kWarn, std::string_view(warnings).substr(begin, end - begin));
    begin = end + 1;
  }
  return config;
}

}  // namespace

std::span<const SettingInfo> Settings() {
  static const std::vector<SettingInfo> infos = [] {
    std::vector<SettingInfo> result;
    for (const Setting& setting : Table()) {
      result.push_back(
          {setting.name, setting.type, setting.range, setting.default_value, setting.help});
    }
    return result;
  }();
  return infos;
}

Result<Config> LoadConfig(const Environment& environment) {
  Config config;
  for (const Setting& setting : Table()) {
    if (Status status = Apply(setting, environment(setting.name), config); !status.ok())
      return status;
  }
  if (config.cache_dir.empty()) config.cache_dir = DefaultCache(environment);
  return config;
}

Status SetByName(Config& config, std::string_view name, const std::string& value) {
  const auto setting = std::ranges::find(Table(), name, &Setting::name);
  TIDEGATE_CHECK(setting != Table().end());
  return Apply(*setting, value, config);
}

std::vector<SettingState> InspectSettings(const Environment& environment) {
  std::vector<SettingState> states;
  for (std::size_t i = 0; i < Table().size(); ++i) {
    Config ignored;
    std::optional<std::string> value = environment(Table()[i].name);
    if (value && value->empty()) value.reset();
    Status status = Apply(Table()[i], value, ignored);
    states.push_back({Settings()[i], std::move(value), std::move(status)});
  }
  return states;
}

std::vector<UnknownSetting> UnknownSettings(std::span<const std::string> names) {
  std::vector<UnknownSetting> unknown;
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix) || name.starts_with(kTestPrefix)) continue;
    // What begins with it is what it was cut from.
    const auto distance = [&](const Setting& setting) {
      return std::pair(!setting.name.starts_with(name), EditDistance(name, setting.name));
    };
    const Setting& nearest = *std::ranges::min_element(Table(), {}, distance);
    if (nearest.name != name) unknown.push_back({name, nearest.name});
  }
  return unknown;
}

std::string UnknownSettingWarnings(std::span<const std::string> names) {
  std::string warnings;
  for (const UnknownSetting& setting : UnknownSettings(names)) {
    warnings += setting.name + " is set but is no setting of tidegate; the nearest is " +
                std::string(setting.nearest) + "\n";
  }
  return warnings;
}

Environment ProcessEnvironment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

std::vector<std::string> ProcessEnvironmentNames() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

Result<Config> ProcessConfig() {
  static const Result<Config> config = LoadProcessConfig();
  return config;
}

}  // namespace tidegate
