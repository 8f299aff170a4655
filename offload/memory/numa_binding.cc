#include "offload/memory/numa_binding.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>

namespace tidegate::offload {
namespace {

// From linux/mempolicy.h, which not every machine that builds this has.
constexpr int kPreferred = 1;

Status StatusAs(StatusCode code, int error, const std::string& what) {
  return Status(code, ErrnoStatus(error, what).message());
}

}  // namespace

Status PreferNode(std::span<std::byte> memory, int node) {
  const std::string what = "placing memory on NUMA node " + std::to_string(node) + " (mbind)";
  if (node < 0 || node >= kMaxNodes)
    return Status(StatusCode::kInvalidArgument, what + ": there is no such node");
  constexpr std::size_t kWordBits = 64;
  std::array<std::uint64_t, kMaxNodes / kWordBits> nodes{};
  const auto bit = static_cast<std::size_t>(node);
  nodes[bit / kWordBits] = std::uint64_t{1} << bit % kWordBits;
  // The kernel reads one bit less than it is told of.
  if (syscall(SYS_mbind, memory.data(), memory.size(), kPreferred, nodes.data(),
              static_cast<unsigned long>(kMaxNodes) + 1, 0U) == 0)
    return Status();
  const int error = errno;
  if (error == EINVAL) return StatusAs(StatusCode::kInvalidArgument, error, what);
  if (error == EPERM || error == ENOSYS) return StatusAs(StatusCode::kUnsupported, error, what);
  return ErrnoStatus(error, what);
}

int NodeOf(const std::byte* address) {
  // Without a target it moves nothing and tells where the page is.
  const void* page = address;
  int node = kAnyNode;
  if (syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &node, 0) != 0 || node < 0) return kAnyNode;
  return node;
}

}  // namespace tidegate::offload
