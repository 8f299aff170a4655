#pragma once

#include "collectives/calibration/data_paths.h"
#include "common/json/json_view.h"
#include "common/status.h"

namespace tidegate {

/// Reads the members chunk_bytes, stream_bytes and single_copy_bytes of `object`, which must be
/// there and in range.
Status ReadDataPaths(const JsonView& object, DataPaths* paths);

}  // namespace tidegate
