#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "offload/memory/byte_range.h"

namespace tidegate::offload {

/// What keeps memory where it is, weakest first.
enum class PinKind {
  kNone,    ///< Nothing: the kernel may write it to swap.
  kLocked,  ///< Never swapped (mlock, or pages of the huge page pool). No device knows of it.
  kDevice,  ///< Locked and known to a device, which can read and write it without the processor.
};
std::string_view PinKindName(PinKind kind);

/// One way to pin memory ("registration"). Driven by one arena, which calls it under its lock and
/// with memory that has its pages. Never called in a forked process.
class Registrar {
 public:
  virtual ~Registrar() = default;

  virtual PinKind kind() const = 0;
  /// The longest piece that is registered at once, a multiple of 2 MiB. Drivers have such limits:
  /// CUDA fails from 512 GiB of small pages on.
  virtual std::size_t most_bytes_a_piece() const { return std::size_t{64} << 30; }
  /// Whether a part of a piece may be released, or only a piece as it was registered.
  virtual bool releases_parts() const { return false; }

  /// kResourceExhausted, saying what limit is short and by how much, where Register of `more` bytes
  /// is known to fail. Asked before any page is touched.
  virtual Status CheckRoom(std::size_t more) const = 0;
  virtual Status Register(std::span<std::byte> piece) = 0;
  virtual void Release(std::span<std::byte> piece) = 0;
};

/// mlock. Limited by RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK.
std::unique_ptr<Registrar> MakeLockRegistrar(std::size_t most_bytes_a_piece = std::size_t{64}
                                                                              << 30);

/// For pages that are locked by nature, those of the huge page pool: does nothing.
std::unique_ptr<Registrar> MakeHugePoolRegistrar();

/// The pieces of one slice that a registrar holds. Externally locked; releases nothing when it goes
/// (a forked process must not).
class PieceTable {
 public:
  /// `registrar` may be null: then nothing is ever pinned. `base`: of the slice.
  PieceTable(Registrar* registrar, std::byte* base) : registrar_(registrar), base_(base) {}

  /// Registers `fresh`, none of which is registered, in pieces of at most the registrar's size. All
  /// or nothing.
  Status Add(const std::vector<ByteRange>& fresh);

  /// Releases what can be released inside `range` and returns, in order, the parts of `range` that
  /// no piece holds then. Where only whole pieces can be released, those that reach out of `range`
  /// stay.
  std::vector<ByteRange> Remove(ByteRange range);

  std::size_t bytes() const { return pinned_.bytes(); }
  std::size_t pieces() const { return pieces_.size(); }

 private:
  std::span<std::byte> Memory(ByteRange range) const {
    return {base_ + range.begin, range.bytes()};
  }
  void Forget(std::map<std::size_t, std::size_t>::iterator piece);

  Registrar* const registrar_;
  std::byte* const base_;
  std::map<std::size_t, std::size_t> pieces_;  ///< From begin to end; neighbours stay apart.
  RangeSet pinned_;                            ///< Their union.
};

}  // namespace tidegate::offload
