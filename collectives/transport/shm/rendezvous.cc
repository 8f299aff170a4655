#include "collectives/transport/shm/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

namespace tidegate {
namespace {

/// The lines of one message; remembers whether every field asked for was there.
class Fields {
 public:
  explicit Fields(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t equals = line.find('=');
      if (equals != std::string::npos) values_[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }

  bool Has(const std::string& name) const { return values_.contains(name); }
  std::string Text(const std::string& name) {
    const auto found = values_.find(name);
    if (found != values_.end()) return found->second;
    complete_ = false;
    return {};
  }
  template <typename T>
  T Number(const std::string& name) {
    const std::string text = Text(name);
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) complete_ = false;
    return value;
  }
  bool complete() const { return complete_; }

 private:
  std::map<std::string, std::string> values_;
  bool complete_ = true;
};

template <typename T>
void Append(std::string& text, const char* name, const T& value) {
  text += name;
  text += '=';
  if constexpr (std::is_convertible_v<T, std::string>)
    text += value;
  else
    text += std::to_string(value);
  text += '\n';
}

std::string EncodeIdentity(const ProcessIdentity& identity) {
  std::string text;
  Append(text, "boot_id", identity.boot_id);
  Append(text, "pid_namespace", identity.pid_namespace);
  Append(text, "network_namespace", identity.network_namespace);
  Append(text, "pid", identity.pid);
  Append(text, "start_time", identity.start_time);
  Append(text, "host", identity.host);
  Append(text, "node_id", identity.node_id);
  return text;
}

ProcessIdentity ReadIdentity(Fields& fields) {
  return {.boot_id = fields.Text("boot_id"),
          .pid_namespace = fields.Number<std::uint64_t>("pid_namespace"),
          .network_namespace = fields.Number<std::uint64_t>("network_namespace"),
          .pid = fields.Number<pid_t>("pid"),
          .start_time = fields.Number<std::uint64_t>("start_time"),
          .host = fields.Text("host"),
          .node_id = fields.Text("node_id")};
}

Status NotOurs(const char* what) {
  return Status(StatusCode::kInternal, std::string("the rendezvous store holds ") + what +
                                           " that tidegate did not write; is its prefix shared?");
}

std::string Version() {
  std::string text;
  Append(text, "version", kWireVersion);
  return text;
}

void AppendStatus(std::string& text, const Status& failure) {
  std::string line = failure.message();
  std::replace(line.begin(), line.end(), '\n', ' ');
  Append(text, "code", static_cast<int>(failure.code()));
  Append(text, "failure", line);
}

/// Ok when the fields hold no failure of a known kind.
Status ReadStatus(Fields& fields) {
  const int code = fields.Number<int>("code");
  const std::string failure = fields.Text("failure");
  if (code <= static_cast<int>(StatusCode::kOk) || code > static_cast<int>(StatusCode::kInternal))
    return Status();
  return Status(static_cast<StatusCode>(code), failure);
}

}  // namespace

std::string Encode(const Presence& presence) {
  std::string text = EncodeIdentity(presence.identity);
  if (presence.left) Append(text, "left", 1);
  if (!presence.failure.ok()) AppendStatus(text, presence.failure);
  return text;
}

Result<Presence> ParsePresence(const std::string& text) {
  Fields fields(text);
  Presence presence{
      .identity = ReadIdentity(fields), .left = fields.Has("left"), .failure = Status()};
  const bool failed = fields.Has("failure");
  if (failed) presence.failure = ReadStatus(fields);
  if (!fields.complete() || presence.identity.pid <= 0 || failed == presence.failure.ok())
    return NotOurs("the presence of a rank");
  return presence;
}

std::string Encode(const SegmentDescription& description) {
  std::string text = Version() + EncodeIdentity(description.creator);
  Append(text, "rank", description.rank);
  Append(text, "address", description.address);
  Append(text, "key", ToHex(description.key));
  Append(text, "ranks", description.ranks);
  Append(text, "stage_bytes", description.stage_bytes);
  return text;
}

std::string EncodeFailure(int rank, const std::string& host, const Status& failure) {
  std::string text = Version();
  Append(text, "rank", rank);
  Append(text, "host", host);
  AppendStatus(text, failure);
  return text;
}

std::string EncodeLastWord(const Status& failure) {
  std::string text = Version();
  AppendStatus(text, failure);
  return text;
}

Status ParseLastWord(const std::string& text) {
  Fields fields(text);
  const auto version = fields.Number<std::uint32_t>("version");
  Status failure = ReadStatus(fields);
  if (!fields.complete() || version != kWireVersion || failure.ok()) return NotOurs("a last word");
  return failure;
}

Result<SegmentDescription> ParseSegmentDescription(const std::string& text) {
  Fields fields(text);
  const auto version = fields.Number<std::uint32_t>("version");
  if (!fields.complete()) return NotOurs("a segment description");
  if (version != kWireVersion)
    return Status(StatusCode::kMismatch,
                  "the group's shared memory was made by a tidegate with protocol version " +
                      std::to_string(version) + ", this build speaks " +
                      std::to_string(kWireVersion) + "; use one tidegate on all ranks");
  if (fields.Has("failure")) {
    const Status failure = ReadStatus(fields);
    const std::string rank = fields.Text("rank");
    const std::string host = fields.Text("host");
    if (!fields.complete() || failure.ok()) return NotOurs("a segment failure");
    return Status(failure.code(),
                  "rank " + rank + " (host " + host +
                      ") could not make the group's shared memory: " + failure.message());
  }
  SegmentDescription description;
  description.creator = ReadIdentity(fields);
  description.rank = fields.Number<int>("rank");
  description.address = fields.Text("address");
  description.ranks = fields.Number<int>("ranks");
  description.stage_bytes = fields.Number<std::size_t>("stage_bytes");
  if (!FromHex(fields.Text("key"), &description.key) || !fields.complete() ||
      description.address.empty() || description.address.size() >= kAddressBytes)
    return NotOurs("a segment description");
  return description;
}

Status CheckSameNode(const ProcessIdentity& theirs, int their_rank, const ProcessIdentity& ours,
                     int our_rank) {
  const std::string them = "rank " + std::to_string(their_rank) + " (host " + theirs.host + ")";
  const std::string us = "rank " + std::to_string(our_rank) + " (host " + ours.host + ")";
  if (theirs.boot_id != ours.boot_id)
    return Status(StatusCode::kUnsupported,
                  them + " is on another machine than " + us +
                      "; groups across nodes need a build with the UCX transport");
  if (theirs.node_id != ours.node_id)
    return Status(StatusCode::kUnsupported,
                  them + " has TIDEGATE_NODE_ID=" + theirs.node_id + " and " + us + " has \"" +
                      ours.node_id +
                      "\", so that they are on different nodes; groups across nodes "
                      "need a build with the UCX transport");
  const auto differ = [](std::uint64_t a, std::uint64_t b) { return a != 0 && b != 0 && a != b; };
  const char* const space = differ(theirs.network_namespace, ours.network_namespace) ? "network"
                            : differ(theirs.pid_namespace, ours.pid_namespace)       ? "pid"
                                                                                     : nullptr;
  if (space == nullptr) return Status();
  return Status(StatusCode::kUnsupported,
                them + " is in another " + space + " namespace than " + us +
                    ", on the same machine; run all ranks of a machine in one container, or use a "
                    "build with the UCX transport");
}

}  // namespace tidegate
