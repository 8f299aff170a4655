#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectives/schedule/schedule.h"

namespace tidegate {

/// What an algorithm may look at when it emits a rank's program.
struct AlgorithmInput {
  int rank = 0;
  int ranks = 1;
  int root = 0;  ///< Rooted collectives only.
};

/// Emits the program of one rank, without building those of the others. Pure.
using Algorithm = Schedule (*)(const AlgorithmInput& input);

// One file each; the costs stand there.
Schedule AllGatherDirect(const AlgorithmInput& input);
Schedule ReduceScatterDirect(const AlgorithmInput& input);
Schedule AllReduceOneShot(const AlgorithmInput& input);
Schedule AllReduceTwoShot(const AlgorithmInput& input);
Schedule BroadcastDirect(const AlgorithmInput& input);
Schedule ReduceTwoShot(const AlgorithmInput& input);
Schedule GatherDirect(const AlgorithmInput& input);
Schedule ScatterDirect(const AlgorithmInput& input);
Schedule AllToAllDirect(const AlgorithmInput& input);
Schedule BarrierArrival(const AlgorithmInput& input);

/// The algorithms that a communicator may run: per collective an ordered list of (largest message
/// in bytes, algorithm); the first whose limit is not exceeded is taken. Not thread-safe while it
/// is being changed.
class AlgorithmTable {
 public:
  /// The table that ships.
  static AlgorithmTable Default();

  /// Makes `algorithm` the one for messages of at most `max_bytes` that no earlier entry serves.
  void Add(Collective collective, std::size_t max_bytes, Algorithm algorithm);
  /// Forgets the entries of `collective`.
  void Clear(Collective collective);
  /// Null when nothing serves the request.
  Algorithm Choose(Collective collective, std::size_t bytes) const;

 private:
  struct Entry {
    std::size_t max_bytes;
    Algorithm algorithm;
  };
  std::map<Collective, std::vector<Entry>> entries_;
};

}  // namespace tidegate
