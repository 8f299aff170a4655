#include "common/unique_fd.h"

#include <unistd.h>

namespace tidegate {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::Reset() {
  // Linux releases the descriptor even when close() fails, so it is never retried.
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

}  // namespace tidegate
