#include "offload/memory/registrar.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

#include "common/check.h"
#include "common/units.h"
#include "offload/memory/page_kind.h"

namespace tidegate::offload {
namespace {

/// The field `name` of /proc/self/status, as text.
std::string OwnStatus(const std::string& name) {
  std::ifstream stream("/proc/self/status");
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  return {};
}

/// CAP_IPC_LOCK. In a user namespace the kernel may see it otherwise; then mlock says so.
bool MayLockAnything() {
  constexpr unsigned kCapIpcLock = 14;
  std::uint64_t capabilities = 0;
  std::istringstream(OwnStatus("CapEff")) >> std::hex >> capabilities;
  return (capabilities >> kCapIpcLock & 1) != 0;
}

std::size_t LockedBytes() {
  std::size_t kib = 0;
  std::istringstream(OwnStatus("VmLck")) >> kib;
  return kib * 1024;
}

/// Bytes that RLIMIT_MEMLOCK allows in all; nullopt: any number.
std::optional<std::size_t> LockLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::nullopt;
  return limit.rlim_cur;
}

/// Why `more` bytes cannot be locked under a `limit`, of which `locked` are used.
Status LimitStatus(std::size_t more, std::size_t limit, std::size_t locked) {
  const std::size_t room = limit - std::min(locked, limit);
  return Status(StatusCode::kResourceExhausted,
                "cannot lock " + FormatBytes(more) + " of memory: this process may lock " +
                    FormatBytes(limit) + " (RLIMIT_MEMLOCK) and has locked " + FormatBytes(locked) +
                    ", " + FormatBytes(more - std::min(room, more)) +
                    " short; raise the limit (ulimit -l, --ulimit memlock=-1 of a container)");
}

/// By system calls: under the sanitizers the functions of the C library do nothing.
class LockRegistrar final : public Registrar {
 public:
  explicit LockRegistrar(std::size_t most_bytes_a_piece) : most_bytes_(most_bytes_a_piece) {}

  PinKind kind() const override { return PinKind::kLocked; }
  std::size_t most_bytes_a_piece() const override { return most_bytes_; }
  bool releases_parts() const override { return true; }

  Status CheckRoom(std::size_t more) const override {
    const std::optional<std::size_t> limit = LockLimit();
    if (!limit || MayLockAnything()) return Status();
    const std::size_t locked = LockedBytes();
    if (locked <= *limit && more <= *limit - locked) return Status();
    return LimitStatus(more, *limit, locked);
  }

  Status Register(std::span<std::byte> piece) override {
    if (syscall(SYS_mlock, piece.data(), piece.size()) == 0) return Status();
    const int error = errno;
    // Of several failures that look alike, the limit is the one with a remedy.
    const std::optional<std::size_t> limit = LockLimit();
    const std::size_t locked = LockedBytes();
    if ((error == ENOMEM || error == EPERM) && limit && locked + piece.size() > *limit)
      return LimitStatus(piece.size(), *limit, locked);
    return ErrnoStatus(error, "cannot lock " + FormatBytes(piece.size()) + " of memory (mlock)");
  }

  void Release(std::span<std::byte> piece) override {
    syscall(SYS_munlock, piece.data(), piece.size());
  }

 private:
  const std::size_t most_bytes_;
};

class HugePoolRegistrar final : public Registrar {
 public:
  PinKind kind() const override { return PinKind::kLocked; }
  bool releases_parts() const override { return true; }
  Status CheckRoom(std::size_t) const override { return Status(); }
  Status Register(std::span<std::byte>) override { return Status(); }
  void Release(std::span<std::byte>) override {}
};

}  // namespace

std::string_view PinKindName(PinKind kind) {
  switch (kind) {
    case PinKind::kNone:
      return "none";
    case PinKind::kLocked:
      return "locked";
    case PinKind::kDevice:
      return "device";
  }
  return "unknown";
}

std::unique_ptr<Registrar> MakeLockRegistrar(std::size_t most_bytes_a_piece) {
  TIDEGATE_CHECK(most_bytes_a_piece > 0 && most_bytes_a_piece % kHugePageBytes == 0);
  return std::make_unique<LockRegistrar>(most_bytes_a_piece);
}

std::unique_ptr<Registrar> MakeHugePoolRegistrar() { return std::make_unique<HugePoolRegistrar>(); }

Status PieceTable::Add(const std::vector<ByteRange>& fresh) {
  if (registrar_ == nullptr) return Status();
  std::vector<ByteRange> added;
  for (ByteRange left : fresh) {
    while (!left.empty()) {
      const ByteRange piece{left.begin,
                            left.begin + std::min(left.bytes(), registrar_->most_bytes_a_piece())};
      if (Status status = registrar_->Register(Memory(piece)); !status.ok()) {
        for (const ByteRange& done : added) Forget(pieces_.find(done.begin));
        return status;
      }
      pieces_[piece.begin] = piece.end;
      pinned_.Add(piece);
      added.push_back(piece);
      left.begin = piece.end;
    }
  }
  return Status();
}

std::vector<ByteRange> PieceTable::Remove(ByteRange range) {
  auto piece = pieces_.upper_bound(range.begin);
  if (piece != pieces_.begin() && std::prev(piece)->second > range.begin) --piece;
  while (piece != pieces_.end() && piece->first < range.end) {
    const auto next = std::next(piece);
    const ByteRange whole{piece->first, piece->second};
    const ByteRange part{std::max(whole.begin, range.begin), std::min(whole.end, range.end)};
    if (part == whole) {
      Forget(piece);
    } else if (registrar_->releases_parts()) {
      registrar_->Release(Memory(part));
      pinned_.Remove(part);
      pieces_.erase(piece);
      if (whole.begin < part.begin) pieces_[whole.begin] = part.begin;
      if (part.end < whole.end) pieces_[part.end] = whole.end;
    }
    piece = next;
  }
  return pinned_.Missing(range);
}

void PieceTable::Forget(std::map<std::size_t, std::size_t>::iterator piece) {
  const ByteRange range{piece->first, piece->second};
  registrar_->Release(Memory(range));
  pinned_.Remove(range);
  pieces_.erase(piece);
}

}  // namespace tidegate::offload
