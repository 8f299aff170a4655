#pragma once

#include <span>

#include "collectives/schedule/schedule.h"
#include "collectives/verifier/orbit.h"
#include "common/status.h"

namespace tidegate::verifier {

/// That ranks never wait for each other in a circle however many chunks there are: in a loop whose
/// pipeline is full, where every step runs once a period. Between a signal and a wait for it lie
/// always the same number of iterations, as between the steps of one rank; a circle of them that
/// does not lead to a later iteration is a deadlock, and there is no other way to one, as long as
/// each wait has a signal, which the Machine sees with few chunks.
///
/// Cost: proportional to the waits and signals; to that times the length of chains of waits where a
/// rank waits for what its peer does in a later iteration.
Status CheckSteadyState(Orbit orbit, std::span<const Schedule> schedules);

}  // namespace tidegate::verifier
