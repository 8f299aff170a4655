// Operations that a Pace holds back: what it is asked for, and that nothing but time differs.

#include "collectives/executor/pace.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/collective_case.h"

namespace tidegate {
namespace {

using testing::CaseMemory;
using testing::CollectiveCase;

constexpr std::size_t kStageBytes = 16384;

/// Lets every third question pass.
class Reluctant final : public Pace {
 public:
  static TimePoint Until(std::uint64_t question) {
    return TimePoint(Nanoseconds(static_cast<std::int64_t>(question)));
  }

  TimePoint Admit(std::size_t bytes) override {
    if (++questions_ % 3 != 0) return Until(questions_);
    admitted_ += bytes;
    return kNotHeld;
  }

  std::uint64_t questions() const { return questions_; }
  std::size_t admitted() const { return admitted_; }

 private:
  std::uint64_t questions_ = 0;
  std::size_t admitted_ = 0;
};

/// The ranks of a group, advanced in turn.
class PacedGroup {
 public:
  explicit PacedGroup(int ranks)
      : group_(ranks, kStageBytes), paces_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank)
      executions_.emplace_back(group_.transport(rank), /*lane=*/0);
  }

  void Run(const CollectiveCase& test_case, const NamedAlgorithm& algorithm) {
    CaseMemory memory(test_case);
    const int ranks = test_case.ranks;
    std::vector<Schedule> schedules;
    std::vector<PreparedCall> calls;
    schedules.reserve(executions_.size());
    calls.reserve(executions_.size());
    ++sequence_;
    for (int rank = 0; rank < ranks; ++rank) {
      schedules.push_back(algorithm.build({.rank = rank, .ranks = ranks}));
      calls.push_back(
          Prepare(memory.RequestFor(rank), schedules.back(), sequence_, kStageBytes, DataPaths()));
      Invocation invocation = Bind(calls.back());
      invocation.pace = &pace(rank);
      ASSERT_TRUE(executions_[static_cast<std::size_t>(rank)].Start(invocation).ok());
    }
    std::vector<bool> running(executions_.size(), true);
    for (int left = ranks; left > 0;) {
      for (int rank = 0; rank < ranks; ++rank) {
        const auto index = static_cast<std::size_t>(rank);
        if (!running[index]) continue;
        const std::uint64_t questions = pace(rank).questions();
        const auto outcome = executions_[index].Advance();
        ASSERT_TRUE(outcome.ok()) << outcome.status().message();
        running[index] = outcome.value() == Execution::Outcome::kBlocked;
        if (!running[index]) --left;
        // Held exactly where the last question was answered so.
        const bool is_held = pace(rank).questions() != questions && pace(rank).questions() % 3 != 0;
        ASSERT_EQ(executions_[index].held_until(),
                  is_held ? Reluctant::Until(pace(rank).questions()) : kNotHeld);
      }
    }
    EXPECT_EQ(memory.FirstError(), "");
  }

  Reluctant& pace(int rank) { return paces_[static_cast<std::size_t>(rank)]; }
  std::uint64_t read(int rank) {
    return executions_[static_cast<std::size_t>(rank)].bytes_from_peers();
  }

 private:
  LoopbackGroup group_;
  std::vector<Reluctant> paces_;
  std::vector<Execution> executions_;
  std::uint64_t sequence_ = 0;
};

class PaceTest : public ::testing::TestWithParam<int> {};

TEST_P(PaceTest, IsAskedForEveryByteReadFromPeersAndForNoOther) {
  const int ranks = GetParam();
  PacedGroup group(ranks);
  std::vector<int> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(rank % 2 == 0 ? 5000 + rank : 3 * rank);
  for (const char* name : {"direct", "ring", "bruck"}) {
    const NamedAlgorithm* const algorithm = FindAlgorithm(Collective::kAllGather, name);
    ASSERT_NE(algorithm, nullptr);
    group.Run({Collective::kAllGather, ReduceOp::kNone, ranks, -1, counts, 1}, *algorithm);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(group.pace(rank).admitted(), group.read(rank));
    EXPECT_EQ(group.read(rank) > 0, ranks > 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PaceTest, ::testing::Values(1, 2, 3, 4, 5, 8));

}  // namespace
}  // namespace tidegate
