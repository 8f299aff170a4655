#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/transport/transport.h"

namespace tidegate {

/// The memory that the ranks of a group on one node share, byte for byte. Zero-filled memory is a
/// valid initial state of everything here but the header's constants. All words are written by one
/// rank only, except where an atomic read-modify-write is named.
///
///   SegmentHeader | RankRecord x ranks | LaneWords x ranks x lanes | all_to_all splits |
///   PairChannel x ranks x ranks | stage x ranks x lanes | region x ranks
///
/// The last three are page-aligned. A region is where a rank's own tensors may lie.

inline constexpr std::uint64_t kSegmentMagic = 0x7469646567617465;  // "tidegate"
inline constexpr std::uint32_t kSegmentVersion = 11;
/// So that one message can carry what a node's ranks need; larger nodes are a different design.
inline constexpr int kMaxRanks = 64;

inline constexpr std::size_t kCpuWords = 16;

struct SegmentHeader {
  /// kFirstClaim + r: rank r is writing the record (claimed by compare-exchange).
  enum FailureState : std::uint32_t { kHealthy = 0, kFailed = 1, kFirstClaim = 16 };

  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint64_t stage_bytes;
  std::uint64_t region_bytes;
  /// A FailureState; the record is readable once it is kFailed (release, read with acquire).
  alignas(64) std::atomic<std::uint32_t> failure_state;
  std::int32_t failure_code;
  std::int32_t failure_reporter;
  std::int32_t failure_culprit;
  char failure_text[1024];
};

struct RankRecord {
  enum State : std::uint32_t { kAbsent = 0, kAttached = 1, kLeft = 2, kAnnounced = 3 };
  /// Also of one that has left.
  static bool HasAttached(std::uint32_t state) { return state != kAbsent && state != kAnnounced; }
  /// The fields below are written before state becomes kAttached, those of the announcement before
  /// it becomes kAnnounced, if ever (release, read with acquire).
  alignas(64) std::atomic<std::uint32_t> state;
  std::int32_t announced_pid;  ///< Of a rank that is there, but has not attached.
  std::uint64_t announced_start_time;
  std::int32_t pid;
  std::int32_t memory_thread;  ///< By the id of which the memory of this process is read.
  char host[64];
  char address[64];               ///< Name of the process's service socket.
  std::uint64_t cpus[kCpuWords];  ///< That this process may use, as bits (CpuSet).
  std::int32_t cpu_quota;         ///< Processors' worth of time, all of its cgroup; 0: no limit.
  std::uint64_t probe_address;    ///< Where in this process probe_value can be read.
  std::uint64_t probe_value;
  /// How many peers can read the memory of this process: each adds one (release, read with
  /// acquire).
  std::atomic<std::uint32_t> readers;
};

/// A Fingerprint as relaxed words, so that a peer may look at it for diagnosis at any time.
struct SharedFingerprint {
  std::atomic<std::uint64_t> words[sizeof(Fingerprint) / sizeof(std::uint64_t)];
};
static_assert(sizeof(Fingerprint) % sizeof(std::uint64_t) == 0);

/// An arrival at an operation: one line, so that who sees it has it all.
struct SharedArrival {
  alignas(64) std::atomic<std::uint64_t> index;  ///< Release; pairs with the acquire in HasArrived.
  SharedFingerprint fingerprint;
};
static_assert(sizeof(SharedArrival) == 64);

/// A PendingWait, for diagnosis: its parts may be of different waits while its rank gets on.
struct SharedWait {
  std::atomic<std::uint64_t> index;
  std::atomic<std::uint64_t> word;
  std::atomic<Mark> mark;
  std::atomic<std::int32_t> peer;
};

/// Progress of one rank in one lane.
struct LaneWords {
  /// Arrival i lies in entry i % 2. A rank can be at most one operation ahead of a peer that still
  /// reads, because completing an operation takes every peer's arrival at it.
  SharedArrival arrivals[2];
  /// Even marks say that something is there, odd ones that it has been read: those who poll the one
  /// are not disturbed by the other.
  alignas(64) std::atomic<std::uint64_t> even_marks[kMaxMarks / 2 + 1];  ///< The last: kDoneMark.
  alignas(64) std::atomic<std::uint64_t> odd_marks[kMaxMarks / 2];
  SharedWait wait;

  std::atomic<std::uint64_t>& Of(Mark mark) {
    // Not (... ? even_marks : odd_marks)[...], of which gcc 12 with UndefinedBehaviorSanitizer
    // makes odd_marks[0] for all odd marks.
    return mark % 2 == 0 ? even_marks[mark / 2] : odd_marks[mark / 2];
  }
};

/// What a receiver tells a sender: a receive that it has posted, or the question whether there is
/// something to receive.
struct PostedReceive {
  enum Kind : std::uint32_t {
    kReceive = 0,
    kQuestion = 1,  ///< Only tag and number count: is there a send `number` of this tag?
  };

  std::int64_t tag;
  std::uint64_t number;  ///< n-th receive of this tag from this sender, from 0.
  std::uint64_t bytes;
  std::uint64_t id;  ///< Names the receive in the data that answers it.
  std::uint32_t dtype;
  std::uint32_t kind;
};

/// The answer to a question: this send has been called and waits for its receive.
struct OfferedSend {
  std::int64_t tag;
  std::uint64_t number;  ///< n-th send of this tag to this receiver, from 0.
};

/// One piece of the message that answers posted receive `id`.
struct PieceHeader {
  std::uint64_t id;
  std::uint64_t bytes;
};

/// Point-to-point channel from one rank to another: three single-producer single-consumer rings.
struct PairChannel {
  static constexpr std::size_t kPosts = 64;
  static constexpr std::size_t kOffers = 32;
  static constexpr std::size_t kPieces = 4;
  static constexpr std::size_t kPieceBytes = 64 << 10;

  alignas(64) std::atomic<std::uint64_t> posts_written;   ///< By the receiver.
  alignas(64) std::atomic<std::uint64_t> posts_read;      ///< By the sender.
  alignas(64) std::atomic<std::uint64_t> pieces_written;  ///< By the sender.
  alignas(64) std::atomic<std::uint64_t> pieces_read;     ///< By the receiver.
  alignas(64) std::atomic<std::uint64_t> offers_written;  ///< By the sender.
  alignas(64) std::atomic<std::uint64_t> offers_read;     ///< By the receiver.
  PostedReceive posts[kPosts];
  OfferedSend offers[kOffers];
  PieceHeader piece_headers[kPieces];
  alignas(4096) std::byte pieces[kPieces][kPieceBytes];
};
static_assert(offsetof(PairChannel, pieces) == 4096, "one page a pair where nothing is sent");

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Offsets for a group of `ranks` with `stage_bytes` a rank and lane and `region_bytes` a rank,
/// both rounded up to pages.
struct SegmentLayout {
  SegmentLayout(int ranks, std::size_t stage_bytes, std::size_t region_bytes = 0);

  std::size_t RankRecordAt(int rank) const;
  std::size_t LaneWordsAt(int lane, int rank) const;
  /// 2 * `ranks` u64: what the all_to_all that `rank` entered as operation `index` sends and
  /// expects.
  std::size_t SplitsAt(int lane, int rank, std::uint64_t index) const;
  std::size_t PairChannelAt(int from, int to) const;
  std::size_t StageAt(int lane, int rank) const;
  std::size_t RegionAt(int rank) const;
  std::size_t total_bytes() const { return total_; }

  const int ranks;
  const std::size_t stage_bytes;
  const std::size_t region_bytes;

 private:
  std::size_t lane_words_, splits_, pairs_, stages_, regions_, total_;
};

}  // namespace tidegate
