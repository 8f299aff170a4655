#pragma once

#include <cstddef>
#include <string>

#include "collectives/transport/shm/process.h"
#include "collectives/transport/shm/wire.h"
#include "common/status.h"

namespace tidegate {

// What ranks tell each other through the bootstrap store, as lines of "name=value".

/// Where the group's segment can be had and what it is like; written by the rank that made it.
struct SegmentDescription {
  ProcessIdentity creator;
  int rank = -1;
  std::string address;  ///< Of the creator's node service.
  SegmentKey key;
  int ranks = 0;
  std::size_t stage_bytes = 0;
};

std::string Encode(const SegmentDescription& description);
/// What the creator writes instead when it could not make the segment.
std::string EncodeFailure(int rank, const std::string& host, const Status& failure);
/// kMismatch for a description of another version, kInternal for text that is none, and the
/// creator's own failure where it had one.
Result<SegmentDescription> ParseSegmentDescription(const std::string& text);

/// Why the group failed, for ranks that come when nobody is left to hand out the segment.
std::string EncodeLastWord(const Status& failure);
/// The failure, or kInternal for text that is none.
Status ParseLastWord(const std::string& text);

/// What a rank says of itself while it has not attached.
struct Presence {
  ProcessIdentity identity;
  bool left = false;  ///< In an orderly way: it will not come, and nobody need mind.
  Status failure;     ///< Not ok: it will not come, and the group fails for this reason.
};

std::string Encode(const Presence& presence);
Result<Presence> ParsePresence(const std::string& text);

/// kUnsupported, naming both sides, unless `theirs` can share memory with, and be watched by,
/// `ours`.
Status CheckSameNode(const ProcessIdentity& theirs, int their_rank, const ProcessIdentity& ours,
                     int our_rank);

}  // namespace tidegate
