#include "bench/offload/workload.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/clock.h"

namespace tidegate::bench {

using offload::Layout;
using offload::Master;
using offload::States;

AdamWTensor::AdamWTensor(offload::Arena& arena, std::size_t count, const Layout& layout) {
  const offload::Hyperparameters chosen;
  tensor_.update = FindUpdate(chosen, layout).value();
  tensor_.sums = offload::FindSums(layout.gradient);
  tensor_.coefficients = CoefficientsOf(chosen, 10, 1.0, 0);
  offload::TensorOperands& operands = tensor_.operands;
  operands.count = count;
  operands.gradient = Take(arena, count * SizeOf(layout.gradient));
  operands.parameter = Take(arena, count * SizeOf(layout.parameter));
  if (layout.master != Master::kNone) operands.master = Take(arena, count * SizeOf(layout.master));
  for (std::size_t s = 0; s < 2; ++s) {
    operands.states[s] = Take(arena, count * SizeOf(layout.states));
    if (layout.states == States::kBlock8)
      operands.scales[s] =
          reinterpret_cast<float*>(Take(arena, offload::ScalesOf(count) * sizeof(float)));
  }
  // Ordinary numbers in every float32 and, in 16 bits, 0.0078 whatever the type; 8-bit states and
  // remainders stay zero.
  const auto fill = [count](void* memory, std::size_t size, float value) {
    if (size == sizeof(float)) std::fill_n(static_cast<float*>(memory), count, value);
    if (size == 2) std::memset(memory, 0x3c, 2 * count);
  };
  fill(const_cast<void*>(operands.gradient), SizeOf(layout.gradient), 1e-3f);
  fill(operands.parameter, SizeOf(layout.parameter), 0.5f);
  if (layout.master == Master::kFloat32) fill(operands.master, sizeof(float), 0.5f);
  if (layout.states == States::kFloat32)
    for (void* state : {operands.states[0], operands.states[1]}) fill(state, sizeof(float), 1e-4f);
}

std::byte* AdamWTensor::Take(offload::Arena& arena, std::size_t bytes) {
  auto block = arena.AllocateShared(bytes);
  TIDEGATE_CHECK(block.ok());
  std::memset(block.value().get(), 0, bytes);
  return memory_.emplace_back(std::move(block).value()).get();
}

Result<std::vector<std::vector<double>>> TakeTurns(const std::vector<Contender>& contenders,
                                                   int rounds) {
  std::vector<std::vector<double>> seconds(contenders.size());
  for (int round = -1; round < rounds; ++round) {  // The first one warms up.
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t turn = (i + static_cast<std::size_t>(round + 1)) % contenders.size();
      const TimePoint begin = SteadyClock().Now();
      TIDEGATE_RETURN_IF_ERROR(contenders[turn].run());
      const std::chrono::duration<double> taken = SteadyClock().Now() - begin;
      if (round >= 0) seconds[turn].push_back(taken.count());
    }
  }
  return seconds;
}

}  // namespace tidegate::bench
