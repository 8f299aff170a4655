#pragma once

#include "common/status.h"

namespace tidegate {

/// A peer whose calls are not those of this rank.
struct Disagreement {
  int peer = -1;
  /// False: the call that went to the other lane, the peer's or this rank's own, has not shown up
  /// there yet, so that `mismatch` lacks it. It will unless its rank has stopped.
  bool explained = true;
  Status mismatch;  ///< Names both ranks and both calls.
};

}  // namespace tidegate
