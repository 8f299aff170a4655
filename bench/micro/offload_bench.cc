#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/micro/ceiling.h"
#include "common/check.h"
#include "offload/optim/update_targets.h"

// One thread: steps of the optimizers, each in turn with what it is held against, round by round.
// offload/<target>/<rule>/float32 is held against a kernel that reads and writes the same arrays
// and does no arithmetic to speak of, with its best prefetch; offload/<target>/fused/... against
// the plain float32 step of AdamW: what other layouts cost, and the factor and the sums of squares
// in the pass. ns: of a parameter, median of the rounds; base_ns: of what it is held against;
// ratio: the median of base / step within a round.

namespace tidegate::bench {
namespace {

using namespace offload;  // NOLINT: names of one library in its benchmark

constexpr int kRounds = 11;
using Task = std::function<void()>;

/// Memory in huge pages where there are any, touched.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes + kHuge) {
    void* const mapped =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TIDEGATE_CHECK(mapped != MAP_FAILED);
    mapped_ = mapped;
    const auto address = reinterpret_cast<std::uintptr_t>(mapped);
    data_ = static_cast<std::byte*>(mapped) + (kHuge - address % kHuge) % kHuge;
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(mapped_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  static constexpr std::size_t kHuge = std::size_t{2} << 20;
  std::size_t bytes_;
  void* mapped_;
  void* data_;
};

/// The arrays that any layout needs, of `count` parameters.
struct Arrays {
  explicit Arrays(std::size_t count)
      : count(count),
        gradient(count * 4),
        gradient16(count * 2),
        parameter(count * 4),
        parameter16(count * 2),
        lower(count * 2),
        states{Memory(count * 4), Memory(count * 4), Memory(count * 4)},
        scales{Memory(count / 64 + 4), Memory(count / 64 + 4)},
        blocks(count / kBlock + 1) {
    for (std::size_t i = 0; i < count; ++i) {
      gradient.as<float>()[i] = 1e-3f * static_cast<float>(static_cast<int>(i * 7919 % 1000) - 500);
      gradient16.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(0x3a00 + i * 7919 % 100);
    }
    Reset();
  }

  /// The states are read as floats of several widths: zero is zero in all.
  void Reset() {
    for (std::size_t i = 0; i < count; ++i) {
      parameter.as<float>()[i] = 1;
      parameter16.as<std::uint16_t>()[i] = 0x3f80;
      lower.as<std::uint16_t>()[i] = 0;
      for (const Memory& state : states) state.as<float>()[i] = 0;
    }
    for (const Memory& scale : scales)
      std::fill_n(scale.as<float>(), count / kScaleBlock + 1, 0.0f);
  }

  Task Step(KernelTarget target, const Hyperparameters& h, const Layout& layout, double factor,
            bool sums) {
    TensorOperands operands;
    operands.count = count;
    const bool wide = layout.parameter == ElementType::kFloat32;
    operands.gradient =
        layout.gradient == ElementType::kFloat32 ? gradient.as<void>() : gradient16.as<void>();
    operands.parameter = wide ? parameter.as<void>() : parameter16.as<void>();
    if (layout.master == Master::kFloat32) operands.master = parameter.as<void>();
    if (layout.master == Master::kSplit) operands.master = lower.as<void>();
    for (int i = 0; i < StateCount(h); ++i) operands.states[i] = states[i].as<void>();
    operands.scales = {scales[0].as<float>(), scales[1].as<float>(), nullptr};
    const UpdateFunction update = FindUpdateFor(target, h, layout);
    const Coefficients c = CoefficientsOf(h, 10, factor, 1);
    BlockSums* const to = sums ? blocks.data() : nullptr;
    return [update, operands, c, to] { update(operands, 0, operands.count, c, to); };
  }

  Task Ceiling(KernelTarget target, int streams, std::size_t ahead) {
    return [this, target, streams, ahead] {
      float* const arrays[] = {parameter.as<float>(), states[0].as<float>(), states[1].as<float>(),
                               states[2].as<float>()};
      RunCeiling(target, gradient.as<float>(), arrays, streams, count, ahead);
    };
  }

  std::size_t count;
  Memory gradient;
  Memory gradient16;
  Memory parameter;
  Memory parameter16;
  Memory lower;
  Memory states[3];
  Memory scales[2];
  std::vector<BlockSums> blocks;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Runs all in turn, kRounds times and once before, and shows the first against the one of the
/// others that is the fastest by its median.
void Compare(benchmark::State& state, std::size_t count, const std::vector<Task>& tasks) {
  std::vector<std::vector<double>> rounds(tasks.size());
  for (int round = -1; round < kRounds; ++round)
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      tasks[i]();
      const std::chrono::duration<double, std::nano> elapsed =
          std::chrono::steady_clock::now() - begin;
      if (round >= 0) rounds[i].push_back(elapsed.count() / static_cast<double>(count));
    }
  const auto base =
      std::min_element(rounds.begin() + 1, rounds.end(),
                       [](const auto& a, const auto& b) { return Median(a) < Median(b); });
  std::vector<double> ratios;
  ratios.reserve(kRounds);
  for (std::size_t i = 0; i < kRounds; ++i) ratios.push_back((*base)[i] / rounds[0][i]);
  state.counters["ns"] = Median(rounds[0]);
  state.counters["base_ns"] = Median(*base);
  state.counters["ratio"] = Median(ratios);
}

/// Made by the first benchmark of its size and kept, for touching it takes seconds.
Arrays& ArraysOf(std::size_t count) {
  static std::unique_ptr<Arrays> arrays;
  if (arrays == nullptr || arrays->count != count) {
    arrays.reset();
    arrays = std::make_unique<Arrays>(count);
  }
  arrays->Reset();
  return *arrays;
}

void AgainstCeiling(benchmark::State& state, KernelTarget target, const Hyperparameters& h) {
  const auto count = static_cast<std::size_t>(state.range(0));
  Arrays& arrays = ArraysOf(count);
  std::vector<Task> tasks = {arrays.Step(target, h, {}, 1, false)};
  for (std::size_t ahead : {0, 1024, 1536, 2304, 3072})
    tasks.push_back(arrays.Ceiling(target, 1 + StateCount(h), ahead));
  for ([[maybe_unused]] auto _ : state) Compare(state, count, tasks);
}

void AgainstPlain(benchmark::State& state, KernelTarget target, const Layout& layout, double factor,
                  bool sums) {
  const auto count = static_cast<std::size_t>(state.range(0));
  Arrays& arrays = ArraysOf(count);
  const Hyperparameters h{.weight_decay = 0.01};
  const std::vector<Task> tasks = {arrays.Step(target, h, layout, factor, sums),
                                   arrays.Step(target, h, {}, 1, false)};
  for ([[maybe_unused]] auto _ : state) Compare(state, count, tasks);
}

/// The pass of the sums alone, against the plain step.
void SumsAlone(benchmark::State& state, KernelTarget target, ElementType type) {
  const auto count = static_cast<std::size_t>(state.range(0));
  Arrays& arrays = ArraysOf(count);
  const SumsFunction sums = FindSumsFor(target, type);
  const void* const gradient =
      type == ElementType::kFloat32 ? arrays.gradient.as<void>() : arrays.gradient16.as<void>();
  const std::vector<Task> tasks = {[&] { sums(gradient, 0, count, 1, arrays.blocks.data()); },
                                   arrays.Step(target, {.weight_decay = 0.01}, {}, 1, false)};
  for ([[maybe_unused]] auto _ : state) Compare(state, count, tasks);
}

template <typename... Arguments>
void Register(KernelTarget target, const std::string& name, Arguments... arguments) {
  const std::string full = "offload/" + std::string(NameOfTarget(target)) + "/" + name;
  auto* const registered = benchmark::RegisterBenchmark(full.c_str(), arguments...);
  registered->Arg(64 << 20)->Iterations(1)->Unit(benchmark::kMillisecond)->ArgName("parameters");
}

// What throws ends the program. NOLINTNEXTLINE(bugprone-throwing-static-initialization)
const bool kRegistered = [] {
  for (const KernelTarget target : KernelTargets()) {
    if (!IsSupported(target) || FindSumsFor(target, ElementType::kFloat32) == nullptr) continue;
    const std::pair<const char*, Hyperparameters> rules[] = {
        {"AdamW", {.weight_decay = 0.01}},
        {"Adam/amsgrad", {.rule = Rule::kAdam, .amsgrad = true}},
        {"SGD", {.rule = Rule::kSgd}},
        {"SGD/momentum", {.rule = Rule::kSgd, .momentum = 0.9}},
        {"Adagrad", {.rule = Rule::kAdagrad}},
        {"Lion", {.rule = Rule::kLion, .weight_decay = 0.01}},
    };
    for (const auto& [name, h] : rules)
      Register(target, std::string(name) + "/float32", AgainstCeiling, target, h);
    constexpr ElementType kWide = ElementType::kFloat32;
    constexpr ElementType kBFloat16 = ElementType::kBFloat16;
    constexpr ElementType kFloat16 = ElementType::kFloat16;
    const std::pair<const char*, Layout> layouts[] = {
        {"float32", {}},
        {"bfloat16", {kBFloat16, kBFloat16, Master::kFloat32}},
        {"float16", {kFloat16, kFloat16, Master::kFloat32}},
        {"split", {kBFloat16, kBFloat16, Master::kSplit}},
        {"split/bfloat16 states", {kBFloat16, kBFloat16, Master::kSplit, States::kBFloat16}},
        {"split/8-bit states", {kBFloat16, kBFloat16, Master::kSplit, States::kBlock8}},
    };
    for (const auto& [name, layout] : layouts) {
      Register(target, std::string("fused/") + name, AgainstPlain, target, layout, 1.0, false);
      Register(target, std::string("fused/") + name + "/factor and sums", AgainstPlain, target,
               layout, 0.5, true);
    }
    Register(target, "sums/float32", SumsAlone, target, kWide);
    Register(target, "sums/bfloat16", SumsAlone, target, kBFloat16);
  }
  return true;
}();

}  // namespace
}  // namespace tidegate::bench
