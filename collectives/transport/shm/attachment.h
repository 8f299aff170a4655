#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/transport/segment_layout.h"
#include "collectives/transport/shm/node_service.h"
#include "collectives/transport/shm/process.h"
#include "collectives/transport/shm/rendezvous.h"
#include "collectives/transport/shm/shm_transport.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {

/// "group 0 [4 ranks]".
std::string DescribeGroup(const std::string& name, int ranks);
/// Bootstrap key of the segment's description.
inline constexpr char kSegmentKey[] = "segment";
/// Bootstrap key of a rank's presence.
std::string PresenceKey(int rank);
/// "rank 2 (pid 4711, host a)".
std::string NameOf(int rank, const ProcessIdentity& identity);
/// "rank 2 (...) died in ... of group 0 [4 ranks]; ...what to do".
std::string DeathText(const std::string& name, const std::string& when, const std::string& group);
/// "rank 2 (...) cannot join group 0 [4 ranks]: ...".
std::string CannotJoinText(const std::string& name, const std::string& group, const Status& reason);

/// One call of ShmTransport::Attach: finds or makes the group's segment. Blocks, on one thread.
class ShmAttachment {
 public:
  explicit ShmAttachment(const ShmTransport::Options& options);
  Result<std::unique_ptr<ShmTransport>> Run();

 private:
  /// A rank's process, from the presence it announced.
  struct Announced {
    ProcessIdentity identity;
    std::shared_ptr<Process> process;  ///< Null when it will not come.
  };

  Result<std::unique_ptr<ShmTransport>> Create();
  Result<std::string> AskForAgreement() const;
  Result<std::unique_ptr<ShmTransport>> Join();
  Result<SegmentDescription> AwaitDescription();
  Status CheckDescription(const SegmentDescription& description) const;
  Result<UniqueFd> FetchSegment(const SegmentDescription& description);
  /// One try over one connection; kTimeout: try again.
  Result<UniqueFd> AskOnce(const SegmentDescription& description, TimePoint until);
  Status CreatorGone(const SegmentDescription& description) const;
  Result<std::unique_ptr<ShmTransport>> MakeSegment(const SegmentLayout& layout);
  Result<std::unique_ptr<ShmTransport>> MapSegment(UniqueFd segment);
  void Publish(ShmTransport& transport) const;
  Status Complete(ShmTransport& transport);

  /// Looks up ranks not seen so far or, once there is a `transport`, all that have not attached:
  /// each once, and then for `budget` altogether. Those not there stay unknown.
  Status ReadPresences(Nanoseconds budget, ShmTransport* transport);
  /// One of them. A rank that will not come fails the group or is marked as left in `transport`;
  /// without one, its failure is returned.
  Status ReadPresence(int rank, Nanoseconds timeout, ShmTransport* transport);
  /// Not ok when there is no point in waiting on: interrupted, cancelled, timed out, or a rank has
  /// died.
  Status CheckPatience(const std::string& awaited);
  Status CheckCancelled() const;
  TimePoint SliceEnd() const;

  const ShmTransport::Options options_;
  const SegmentLayout layout_;  // Without regions.
  const std::string group_;
  const TimePoint start_;
  std::shared_ptr<NodeService> service_;
  ProcessIdentity self_;
  std::vector<std::optional<Announced>> announced_;
};

}  // namespace tidegate
