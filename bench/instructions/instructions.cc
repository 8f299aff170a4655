// Work whose instructions scripts/instructions.py has counted by callgrind: counts do not depend on
// what else the machine does, so that a few in a hundred more are seen where times show nothing.
//
//   tidegate_instructions                 the scenarios, one a line
//   tidegate_instructions --toolchain     what the counts depend on
//   tidegate_instructions SCENARIO        runs it; exit 77 where there is no AVX2

#include <gnu/libc-version.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/micro/stepped_group.h"
#include "collectives/kernels/reduce_targets.h"

namespace tidegate::bench {
namespace {

constexpr int kCalls = 1000;
constexpr int kNoAvx2 = 77;

/// Makes the calls of a scenario once it is set up.
using Work = std::function<void()>;

Work Collectives(Collective collective, int ranks, std::size_t bytes) {
  auto group = std::make_shared<SteppedGroup>(collective, ranks, bytes);
  group->RunOnce();  // What is allocated once is there.
  return [group] { group->RunOnce(); };
}

Work Preparations(int ranks) {
  auto group = std::make_shared<SteppedGroup>(Collective::kAllGather, ranks, 1 << 10);
  group->Prepare();
  return [group] { group->Prepare(); };
}

Work Reductions(DataType dtype, int count, std::size_t bytes) {
  struct Memory {
    std::vector<std::vector<std::byte>> buffers;
    std::vector<const std::byte*> sources;
  };
  auto memory = std::make_shared<Memory>();
  for (int i = 0; i <= count; ++i) memory->buffers.emplace_back(bytes);
  for (int i = 0; i < count; ++i)
    memory->sources.push_back(memory->buffers[static_cast<std::size_t>(i)].data());
  const ReduceKernel kernel = FindReduceKernel(dtype, ReduceOp::kSum).value();
  return [=] {
    kernel({.dst = memory->buffers.back().data(),
            .sources = memory->sources.data(),
            .source_count = count,
            .elements = bytes / SizeOf(dtype),
            .factors = nullptr,
            .divisor = count});
  };
}

struct Scenario {
  const char* name;
  Work (*set_up)();
};
constexpr std::array kScenarios = {
    Scenario{"all_gather_4_ranks_1k",
             [] { return Collectives(Collective::kAllGather, 4, 1 << 10); }},
    Scenario{"reduce_scatter_4_ranks_1k",
             [] { return Collectives(Collective::kReduceScatter, 4, 1 << 10); }},
    Scenario{"barrier_4_ranks", [] { return Collectives(Collective::kBarrier, 4, 0); }},
    Scenario{"prepare_4_ranks", [] { return Preparations(4); }},
    Scenario{"reduce_float32_4_of_4k", [] { return Reductions(DataType::kFloat32, 4, 4096); }},
    Scenario{"reduce_bfloat16_4_of_4k", [] { return Reductions(DataType::kBFloat16, 4, 4096); }},
    Scenario{"reduce_float16_2_of_4090", [] { return Reductions(DataType::kFloat16, 2, 4090); }},
    Scenario{"reduce_e4m3fn_2_of_4k", [] { return Reductions(DataType::kFloat8E4M3FN, 2, 4096); }},
};

}  // namespace
}  // namespace tidegate::bench

/// Only what runs inside is counted.
extern "C" [[gnu::noinline]] void tidegate_counted(const tidegate::bench::Work& work) {
  for (int i = 0; i < tidegate::bench::kCalls; ++i) work();
}

int main(int argc, char** argv) {
  using namespace tidegate;
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  if (wanted == "--toolchain") {
    std::printf("%s, glibc %s\n", __VERSION__, gnu_get_libc_version());
    return 0;
  }
  for (const bench::Scenario& scenario : bench::kScenarios) {
    if (wanted.empty()) std::puts(scenario.name);
    if (wanted != scenario.name) continue;
    // The best that callgrind knows, whatever the machine has.
    for (const KernelTarget target : KernelTargets()) {
      if (NameOfTarget(target) != "AVX2" || !IsSupported(target)) continue;
      UseKernelTarget(target);
      tidegate_counted(scenario.set_up());
      return 0;
    }
    return bench::kNoAvx2;
  }
  if (wanted.empty()) return 0;
  std::fprintf(stderr, "no scenario %s\n", argv[1]);
  return 2;
}
