// Which sizes of blocks a plan is tried with.

#include <algorithm>
#include <random>
#include <utility>

#include "collectives/verifier/verifier.h"

namespace tidegate {
namespace {

constexpr std::int64_t kChunk = 1024;
/// Chunks by which every slot has been used twice: where loops begin, end, and do both at once.
constexpr int kFewChunks = 2 * kChunksInFlight + 2;
/// A pipeline as deep as a long ring is not filled: CheckSteadyState speaks for any depth.
constexpr int kDeepest = 16;
/// Ordered pairs of blocks that are tried alone: all those of 8 blocks, a few drawn of more.
constexpr std::int64_t kAllPairs = std::int64_t{8} * 7;
constexpr std::int64_t kDrawnPairs = 16;

class Problems {
 public:
  Problems(Collective collective, const Placement& placement, int root, int parts)
      : collective_(collective), placement_(placement), root_(root), parts_(parts) {}

  void Add(std::vector<std::int64_t> sizes) {
    made_.push_back({.collective = collective_,
                     .placement = &placement_,
                     .root = root_,
                     .chunk_bytes = kChunk,
                     .sizes = std::move(sizes)});
  }

  void AddEven(int depth) {
    Add({(kFewChunks - 1 + std::min(depth, kDeepest)) * kChunk});
    for (int chunks = 0; chunks <= kFewChunks; ++chunks) Add({chunks * kChunk});
    Add({1});
    Add({2 * kChunk + 1});
  }

  /// One tensor cut into parts of one length, of which the last that has anything may have less.
  void AddCuts() {
    for (const int chunks : {3, kFewChunks - 1}) {
      for (int last = 0; last <= chunks; ++last) {
        std::vector<std::int64_t> sizes(static_cast<std::size_t>(parts_), chunks * kChunk);
        sizes.back() = std::max<std::int64_t>(0, last * kChunk - 7);
        Add(sizes);
        if (parts_ < 3) continue;
        std::swap(sizes.back(), sizes[sizes.size() - 2]);
        sizes.back() = 0;
        Add(std::move(sizes));
      }
    }
    // Of a short tensor the first parts alone have anything: what waits for another part then does
    // not wait at all.
    for (const int chunks : {1, 3}) {
      for (int full = 0; full < parts_; full += std::max(1, parts_ / (chunks == 1 ? 16 : 2))) {
        std::vector<std::int64_t> sizes(static_cast<std::size_t>(parts_), 0);
        std::fill_n(sizes.begin(), full, chunks * kChunk);
        sizes[static_cast<std::size_t>(full)] = (chunks - 1) * kChunk + 100;
        Add(std::move(sizes));
      }
    }
  }

  void AddUneven() {
    const std::int64_t n = Blocks();
    const auto count = static_cast<std::size_t>(n);
    const auto each = [&](auto&& size_of) {
      std::vector<std::int64_t> sizes(count);
      for (std::size_t i = 0; i < count; ++i) sizes[i] = size_of(static_cast<std::int64_t>(i));
      Add(std::move(sizes));
    };
    // No two alike, so that one block's bytes are not taken for another's; then blocks of 0, 1 and
    // a few chunks, from both ends; then one long block among short ones, one empty among long
    // ones; and some that nobody thought of.
    each([&](std::int64_t i) { return 4 * kChunk + 1 + i % kChunk; });
    each([&](std::int64_t i) { return i % 3 * 2 * kChunk + (i % 3 == 0 ? 0 : 1 + i % 7); });
    each([&](std::int64_t i) { return (n - 1 - i) % 4 * kChunk + i % 2; });
    each([&](std::int64_t i) { return i * 7 % n == 0 ? 6 * kChunk + 5 : 1; });
    each([&](std::int64_t i) { return i * 5 % n == n - 1 ? 0 : 5 * kChunk; });
    std::mt19937 random(static_cast<std::uint32_t>(count));
    for (int i = 0; i < 6; ++i)
      each([&](std::int64_t) {
        return static_cast<std::int64_t>(random() % (kFewChunks * kChunk)) / 256 * 256;
      });
  }

  /// Two blocks alone, of which one ends first. An access runs because of one block, and two that
  /// could meet in a slot because of two. Another block only adds waits between them: it brings no
  /// earlier signal, since a mark is signalled in one place or for the longest block
  /// (CheckStructure). So what is in order in all pairs is so with any other blocks.
  void AddPairs() {
    const std::int64_t n = Blocks();
    const std::int64_t all = n * (n - 1);
    std::mt19937 random(static_cast<std::uint32_t>(n));
    const bool draws = all > kAllPairs;
    for (std::int64_t i = 0; i < (draws ? kDrawnPairs : all); ++i) {
      const std::int64_t pair = draws ? static_cast<std::int64_t>(random()) % all : i;
      const std::int64_t longer = pair / (n - 1);
      const std::int64_t shorter = (longer + 1 + pair % (n - 1)) % n;
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(n), 0);
      sizes[static_cast<std::size_t>(longer)] = kFewChunks * kChunk;
      for (const int chunks : {kChunksInFlight + 1, kFewChunks}) {
        sizes[static_cast<std::size_t>(shorter)] = chunks * kChunk - 7;
        Add(sizes);
      }
    }
  }

  std::vector<Problem> Take() { return std::move(made_); }

 private:
  std::int64_t Blocks() const {
    const std::int64_t ranks = placement_.ranks();
    return collective_ == Collective::kAllToAll ? ranks * ranks : ranks;
  }

  const Collective collective_;
  const Placement& placement_;
  const int root_;
  const int parts_;
  std::vector<Problem> made_;
};

}  // namespace

std::vector<Problem> ProblemsFor(Collective collective, const Placement& placement, int root,
                                 int parts, int depth, bool even) {
  Problems problems(collective, placement, root, parts);
  problems.AddEven(depth);
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      if (parts > 1) problems.AddCuts();
      break;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      if (!even) {
        problems.AddUneven();
        problems.AddPairs();
      }
      break;
    case Collective::kBarrier:
      break;
  }
  return problems.Take();
}

}  // namespace tidegate
