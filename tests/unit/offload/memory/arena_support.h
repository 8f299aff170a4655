// What the tests of the arena share.
#pragma once

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "offload/memory/arena.h"
#include "offload/memory/node_segment.h"

namespace tidegate::offload {

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Bytes of pages that the file behind `fd` has, as the kernel counts them.
inline std::size_t PageBytesOf(int fd) {
  struct stat file{};
  EXPECT_EQ(fstat(fd, &file), 0);
  return static_cast<std::size_t>(file.st_blocks) * 512;
}

inline std::shared_ptr<const NodeSegment> MakeSegment(std::size_t slice_bytes, int ranks = 1,
                                                      PageChoice pages = PageChoice::kSmall) {
  auto segment = NodeSegment::Create({.ranks = ranks, .slice_bytes = slice_bytes, .pages = pages});
  EXPECT_TRUE(segment.ok()) << segment.status().message();
  return segment.ok() ? std::move(segment).value() : nullptr;
}

inline std::shared_ptr<Arena> MakeArena(std::shared_ptr<const NodeSegment> segment,
                                        ArenaOptions options = {}) {
  auto arena = Arena::Create(std::move(segment), 0, std::move(options));
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return arena.ok() ? std::move(arena).value() : nullptr;
}

inline ArenaOptions Unpinned() {
  ArenaOptions options;
  options.pinning = Pinning::kOff;
  return options;
}

/// Registers nothing, but keeps a record and fails on demand.
class FakeRegistrar final : public Registrar {
 public:
  struct Record {
    std::vector<std::span<std::byte>> held;
    int calls = 0;
    int fail_at_call = -1;  ///< The call of Register that fails, from 0.
    std::size_t room = std::size_t{1} << 60;
  };
  FakeRegistrar(Record& record, std::size_t most_bytes, bool parts)
      : record_(record), most_bytes_(most_bytes), parts_(parts) {}

  PinKind kind() const override { return PinKind::kDevice; }
  std::size_t most_bytes_a_piece() const override { return most_bytes_; }
  bool releases_parts() const override { return parts_; }
  Status CheckRoom(std::size_t more) const override {
    return more <= record_.room ? Status() : Status(StatusCode::kResourceExhausted, "no room");
  }
  Status Register(std::span<std::byte> piece) override {
    if (record_.calls++ == record_.fail_at_call)
      return Status(StatusCode::kResourceExhausted, "the driver refuses");
    record_.held.push_back(piece);
    return Status();
  }
  void Release(std::span<std::byte> piece) override {
    const auto same = [&](std::span<std::byte> held) {
      return held.data() == piece.data() && held.size() == piece.size();
    };
    const std::size_t released = std::erase_if(record_.held, same);
    EXPECT_TRUE(parts_ || released == 1) << "not a piece as it was registered";
  }

 private:
  Record& record_;
  const std::size_t most_bytes_;
  const bool parts_;
};

/// In a child: RLIMIT_MEMLOCK of `bytes`, which binds even root from now on.
inline bool LimitLocks(std::size_t bytes) {
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0;
}

}  // namespace tidegate::offload
