#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>

#include "collectives/admission/admission.h"
#include "collectives/lane_pace.h"
#include "common/clock.h"

// What limits of all-gathers cost an operation, and a chunk.

namespace tidegate::bench {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;

/// From a call to the end of its operation, where there is room: the budget of an operation.
void Admissions(benchmark::State& state, const AdmissionLimits& limits) {
  GroupAdmission group;
  group.SetLimits(limits);
  for ([[maybe_unused]] auto _ : state) {
    const std::shared_ptr<Ticket> ticket = group.Come(kBytes, /*urgent=*/false);
    benchmark::DoNotOptimize(ticket.get());
    if (ticket != nullptr) ticket->Leave();
  }
}
BENCHMARK_CAPTURE(Admissions, off, AdmissionLimits{});
BENCHMARK_CAPTURE(Admissions, of_two_operations,
                  AdmissionLimits{.in_flight = {.ops = 2, .bytes = {}}, .rate = {}, .burst = {}});
BENCHMARK_CAPTURE(Admissions, of_bytes,
                  AdmissionLimits{
                      .in_flight = {.ops = {}, .bytes = 8 << 20}, .rate = {}, .burst = {}});

/// Of a chunk that need not wait.
void Paces(benchmark::State& state, const AdmissionLimits& limits) {
  GroupAdmission group;
  group.SetLimits(limits);
  LanePace pace(group, LinkClass::kNode, SteadyClock());
  Pace* const next = pace.ForNext();
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(next->Admit(1));
}
BENCHMARK_CAPTURE(Paces, off, AdmissionLimits{});
BENCHMARK_CAPTURE(Paces, at_a_rate,
                  AdmissionLimits{
                      .in_flight = {}, .rate = std::uint64_t{1} << 40, .burst = kBytes});

}  // namespace
}  // namespace tidegate::bench
