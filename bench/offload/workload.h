#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "offload/memory/arena.h"
#include "offload/pipelined_step.h"
#include "offload/step_runner.h"
#include "offload/threads/thread_pool.h"

namespace tidegate::bench {

/// Memory of one tensor with everything that AdamW needs in a layout, from an arena, filled.
class AdamWTensor {
 public:
  AdamWTensor(offload::Arena& arena, std::size_t count, const offload::Layout& layout);

  offload::StepTensor tensor() const { return tensor_; }

 private:
  std::byte* Take(offload::Arena& arena, std::size_t bytes);

  std::vector<std::shared_ptr<std::byte>> memory_;
  offload::StepTensor tensor_;
};

/// One of those that take turns. `run` returns when the work is done.
struct Contender {
  std::string name;
  std::function<Status()> run;
};

/// Seconds of each contender in each round; the order within a round turns from round to round.
Result<std::vector<std::vector<double>>> TakeTurns(const std::vector<Contender>& contenders,
                                                   int rounds);

}  // namespace tidegate::bench
