#pragma once

#include <cstdint>

namespace tidegate {

/// A message between nodes as its sender states it beside its program: blocks block, block +
/// stride, ... go to rank `to` once, every byte of them. Blocks are numbered as the sizes of a call
/// are: by rank; all_reduce, broadcast and reduce by part; all_to_all from * ranks + to.
///
/// The claims of a group are all that it puts over the wire. They come from what the algorithm
/// means to do (its formula or its flow), not from its steps, so that the verifier can hold the
/// steps to them.
struct WireClaim {
  int to = 0;
  std::int64_t block = 0;
  int count = 1;
  int stride = 1;

  bool operator==(const WireClaim&) const = default;
};

}  // namespace tidegate
