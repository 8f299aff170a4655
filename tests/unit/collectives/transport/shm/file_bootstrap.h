#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "collectives/transport/bootstrap.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {

/// A directory that goes with the object, in the process that made it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() : owner_(getpid()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "tidegate-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (getpid() == owner_) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  const pid_t owner_;
  std::filesystem::path path_;
};

/// A Bootstrap over files, without locks: a rank may be killed at any instruction.
class FileBootstrap final : public Bootstrap {
 public:
  explicit FileBootstrap(std::filesystem::path directory) : directory_(std::move(directory)) {
    std::filesystem::create_directories(directory_);
  }

  Status Set(const std::string& key, const std::string& value) override {
    const std::filesystem::path partial = File(key + "." + std::to_string(getpid()));
    std::ofstream(partial, std::ios::binary) << value;
    if (rename(partial.c_str(), File(key).c_str()) != 0) return ErrnoStatus(errno, "rename");
    return Status();
  }

  Result<std::string> Get(const std::string& key, Nanoseconds timeout) override {
    const TimePoint deadline = SteadyClock().Now() + timeout;
    for (;;) {
      if (std::ifstream file(File(key), std::ios::binary); file)
        return std::string(std::istreambuf_iterator<char>(file), {});
      if (SteadyClock().Now() >= deadline) return Status(StatusCode::kTimeout, "no " + key);
      usleep(200);
    }
  }

  Result<std::int64_t> Increment(const std::string& key) override {
    for (std::int64_t value = 1;; ++value) {
      const UniqueFd fd(open(File(key + "-" + std::to_string(value)).c_str(),
                             O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
      if (fd.valid()) return value;
      if (errno != EEXIST) return ErrnoStatus(errno, "open");
    }
  }

 private:
  std::filesystem::path File(std::string key) const {
    for (char& letter : key)
      if (letter == '/') letter = '_';
    return directory_ / key;
  }

  const std::filesystem::path directory_;
};

}  // namespace tidegate
