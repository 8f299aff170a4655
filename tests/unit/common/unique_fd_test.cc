#include "common/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>

namespace tidegate {
namespace {

int OpenFd() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesWhenItGoes) {
  int raw = -1;
  {
    const UniqueFd fd(OpenFd());
    raw = fd.get();
    ASSERT_TRUE(fd.valid());
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, MoveLeavesSourceEmpty) {
  UniqueFd source(OpenFd());
  const int raw = source.get();
  const UniqueFd target(std::move(source));
  EXPECT_EQ(target.get(), raw);
  EXPECT_FALSE(source.valid());  // NOLINT: the state after a move is the claim.
}

TEST(UniqueFdTest, AssignmentClosesTheOldOne) {
  UniqueFd fd(OpenFd());
  const int old = fd.get();
  UniqueFd other(OpenFd());
  const int kept = other.get();
  fd = std::move(other);
  EXPECT_FALSE(IsOpen(old));
  EXPECT_TRUE(IsOpen(kept));
  EXPECT_EQ(fd.get(), kept);
}

}  // namespace
}  // namespace tidegate
