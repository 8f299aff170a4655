#pragma once

#include "collectives/calibration/data_paths.h"
#include "common/clock.h"

namespace tidegate {

/// The data paths that are fastest here, found by two threads that exchange tensors of up to 32 MB
/// as two ranks do in an all-gather: 0.3 s, where processors are shared up to 1.2 s, and 100 MB.
/// What is not at least 3% better than declared stays as declared, and so does all with one core,
/// without a second thread, or where memory is short.
DataPaths MeasureDataPaths(int cores, const Clock& clock = SteadyClock());

}  // namespace tidegate
