#include "common/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

#include "common/check.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

TEST(StatusTest, DefaultIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().code(), StatusCode::kOk);
}

TEST(StatusTest, KeepsCodeAndMessage) {
  const Status status(StatusCode::kPeerLost, "rank 2 died");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_EQ(status.message(), "rank 2 died");
  EXPECT_EQ(StatusCodeName(status.code()), "PeerLost");
}

TEST(StatusTest, CopiesAreOfTheirOwn) {
  Status status(StatusCode::kPeerLost, "rank 2 died");
  const Status copy = status;
  status = Status(StatusCode::kTimeout, "late");
  EXPECT_EQ(copy.code(), StatusCode::kPeerLost);
  EXPECT_EQ(copy.message(), "rank 2 died");
  status = copy;
  EXPECT_EQ(status.message(), "rank 2 died");
  status = Status();
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(copy.message(), "rank 2 died");
}

TEST(StatusTest, OkHasNoMessage) {
  const Status status(StatusCode::kOk, "written by a peer");
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.message(), "");
}

TEST(StatusTest, ErrnoStatusHoldsWhatTextAndNumber) {
  const Status status = ErrnoStatus(EBADF, "closing lane 3");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "closing lane 3: Bad file descriptor (errno 9)");
}

TEST(StatusTest, LimitsOfTheMachineAreResourceExhausted) {
  for (const int error : {EMFILE, ENFILE, ENOMEM, ENOSPC, EFBIG, EDQUOT}) {
    EXPECT_EQ(ErrnoStatus(error, "x").code(), StatusCode::kResourceExhausted) << error;
  }
}

TEST(ResultTest, HoldsMoveOnlyValue) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(ResultTest, HoldsStatus) {
  const Result<int> result(Status(StatusCode::kTimeout, "late"));
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kTimeout);
  EXPECT_EQ(result.status().message(), "late");
}

TEST(ResultTest, RefusesOkWithoutValue) {
  EXPECT_THROW({ Result<int> result{Status()}; }, InvariantError);
}

TEST(ResultTest, ReturnIfErrorLeavesOnlyOnError) {
  const auto after = [](const Status& status) -> Result<std::string> {
    TIDEGATE_RETURN_IF_ERROR(status);
    return std::string("went on");
  };
  EXPECT_EQ(after(Status()).value(), "went on");
  EXPECT_EQ(after(Status(StatusCode::kAborted, "stop")).status().message(), "stop");
}

TEST(CheckTest, NamesTheBrokenInvariant) {
  TIDEGATE_CHECK(1 + 1 == 2);
  try {
    TIDEGATE_CHECK(1 + 1 == 3);
    FAIL() << "the check passed";
  } catch (const InvariantError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 + 1 == 3"));
    EXPECT_THAT(error.what(), HasSubstr("status_test.cc:"));
  }
}

}  // namespace
}  // namespace tidegate
