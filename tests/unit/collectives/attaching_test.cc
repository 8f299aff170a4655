// Calls that come while another thread of the process is joining the group.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "collectives/communicator_impl.h"
#include "tests/unit/collectives/support/local_group.h"

namespace tidegate {
namespace {

using testing::Barrier;

/// A group whose first call hangs in joining it until it is cancelled.
class AttachingTest : public ::testing::Test {
 protected:
  AttachingTest() {
    CommunicatorOptions options;
    options.group_name = "test";
    options.ranks = 2;
    options.timeout = std::chrono::hours(1);
    group_ = CommunicatorImpl::Make(
        std::move(options),
        Membership{[this](TimePoint, const std::atomic<bool>& cancelled) -> Result<Attachment> {
          joining_ = true;
          while (!cancelled) std::this_thread::yield();
          return Status(StatusCode::kAborted, "cancelled");
        }});
    first_ = std::thread([this] { first_outcome_ = group_->Submit({Barrier()}, {})->status(); });
    while (!joining_) std::this_thread::yield();
  }
  void TearDown() override {
    group_->Abort("the test is over");
    if (first_.joinable()) first_.join();
  }

  std::shared_ptr<CommunicatorImpl> group_;
  std::atomic<bool> joining_{false};
  std::thread first_;
  Status first_outcome_;
};

TEST_F(AttachingTest, AnotherCallHasItsOwnDeadline) {
  const auto late = group_->Submit({Barrier()}, {.timeout = std::chrono::milliseconds(150)});
  EXPECT_EQ(late->status().code(), StatusCode::kTimeout);
  EXPECT_NE(late->status().message().find("while another thread was joining the group"),
            std::string::npos)
      << late->status().message();
  first_.join();
  EXPECT_EQ(first_outcome_.code(), StatusCode::kAborted) << first_outcome_.message();
}

TEST_F(AttachingTest, AnotherCallHeedsSignals) {
  static std::thread::id interrupted;
  interrupted = std::this_thread::get_id();
  SetInterruptCheck([] { return std::this_thread::get_id() == interrupted; });
  const auto call = group_->Submit({Barrier()}, {});
  SetInterruptCheck(nullptr);
  EXPECT_EQ(call->status().code(), StatusCode::kInterrupted) << call->status().message();
  first_.join();
  EXPECT_NE(first_outcome_.message().find("interrupted by a signal"), std::string::npos)
      << first_outcome_.message();
}

TEST_F(AttachingTest, AnotherCallEndsWithTheGroup) {
  std::thread other([this] {
    EXPECT_EQ(group_->Submit({Barrier()}, {})->status().code(), StatusCode::kAborted);
  });
  group_->Abort("enough");
  other.join();
}

}  // namespace
}  // namespace tidegate
