#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"

namespace tidegate {

/// Every setting of tidegate, with its default. The table behind it (config.cc) is the only place
/// that names environment variables; a test compares docs/configuration.md with it.
struct Config {
  LogLevel debug = LogLevel::kWarn;         ///< TIDEGATE_DEBUG: OFF, WARN, INFO or TRACE.
  std::string stats_file;                   ///< TIDEGATE_STATS_FILE: JSON lines; empty: none.
  std::size_t stage_bytes = 2 << 20;        ///< TIDEGATE_STAGE_BYTES: staging per rank and lane.
  std::optional<std::size_t> chunk_bytes;   ///< TIDEGATE_CHUNK_BYTES: longest chunk; else measured.
  std::optional<std::size_t> stream_bytes;  ///< TIDEGATE_STREAM_BYTES: non-temporal stores from;
                                            ///< else measured.
  /// TIDEGATE_SINGLE_COPY_BYTES: up to which ranks read each other's process; else
  /// 16 MiB where that is measured to pay, and 0 with more ranks than processors that they may use
  /// together.
  std::optional<std::size_t> single_copy_bytes;
  /// TIDEGATE_HEAP_BYTES: shared memory for a rank's own tensors, in each group; else an equal part
  /// of the machine's memory.
  std::optional<std::size_t> heap_bytes;
  /// What all-gathers may do, in all groups of the process together that have no limits of their
  /// own. TIDEGATE_AG_MAX_OPS: of them in flight; else any number.
  std::optional<std::size_t> ag_max_ops;
  /// TIDEGATE_AG_MAX_BYTES: of their outputs in flight; else any number.
  std::optional<std::size_t> ag_max_bytes;
  bool ag_auto = false;           ///< TIDEGATE_AG_MAX_BYTES=auto: as few as cost no speed.
  std::string ag_wait = "queue";  ///< TIDEGATE_AG_WAIT: who waits for room, "queue" or "block".
  /// TIDEGATE_AG_RATE: bytes a second that they may read from peers; else any number.
  std::optional<std::size_t> ag_rate;
  /// TIDEGATE_AG_BURST: bytes of them at once after a pause; else those of 10 ms, at least 1 MiB.
  std::optional<std::size_t> ag_burst;
  std::string ag_links = "all";  ///< TIDEGATE_AG_LINKS: on which they count: all, node or net.
  std::optional<std::size_t> offload_threads;  ///< TIDEGATE_OFFLOAD_THREADS: else by the machine.
  Nanoseconds shutdown_timeout = std::chrono::seconds(10);  ///< TIDEGATE_SHUTDOWN_TIMEOUT.
  std::string algo;            ///< TIDEGATE_ALGO: forced algorithms; empty: none.
  std::string topo_file;       ///< TIDEGATE_TOPO_FILE: description of the machine; empty: none.
  std::string topo_dump_file;  ///< TIDEGATE_TOPO_DUMP_FILE: where to write it; empty: nowhere.
  std::string node_id;         ///< TIDEGATE_NODE_ID: ranks of other names are on other nodes.
  bool calibrate = true;       ///< TIDEGATE_CALIBRATE: measure the machine, once.
  /// TIDEGATE_CACHE_DIR, else tidegate in XDG_CACHE_HOME or in ~/.cache; empty: nothing is kept.
  std::string cache_dir;
  /// TIDEGATE_DEFAULT. Acted upon by the Python package when torch is imported, long before there
  /// is a Config: here it is only checked.
  std::string default_devices = "none";
};

/// One row of the table, for `docs/configuration.md` and `tidegate env`.
struct SettingInfo {
  std::string_view name;   ///< The environment variable.
  std::string_view type;   ///< "bytes", "seconds", "choice", "path", "text".
  std::string_view range;  ///< Accepted values, readable.
  std::string_view default_value;
  std::string_view help;
};
std::span<const SettingInfo> Settings();

/// Looks one variable up; nullopt when unset.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;

/// Reads the settings; an empty value is the default. A bad value is kInvalidArgument naming
/// variable, value and range.
Result<Config> LoadConfig(const Environment& environment);

/// Sets what the variable `name`, one of Settings(), would set to `value`; errors as LoadConfig's.
/// An empty value changes nothing.
Status SetByName(Config& config, std::string_view name, const std::string& value);

/// What an environment says about one setting.
struct SettingState {
  SettingInfo info;
  std::optional<std::string> value;  ///< nullopt: unset or empty, the default holds.
  Status status;                     ///< LoadConfig's error about `value`.
};
/// One entry for each of Settings(), in its order.
std::vector<SettingState> InspectSettings(const Environment& environment);

/// A variable that starts with TIDEGATE_ but is no setting, and the setting that it resembles most.
struct UnknownSetting {
  std::string name;
  std::string_view nearest;
};
/// Those among `names`. (TIDEGATE_ names read by the Python layer are in the table too.)
std::vector<UnknownSetting> UnknownSettings(std::span<const std::string> names);

/// One warning line for each of UnknownSettings(names).
std::string UnknownSettingWarnings(std::span<const std::string> names);

/// The variables of this process.
Environment ProcessEnvironment();
std::vector<std::string> ProcessEnvironmentNames();

/// LoadConfig over the process environment, once per process: the first call sets the log level
/// and warns about unknown names. Thread-safe.
Result<Config> ProcessConfig();

}  // namespace tidegate
