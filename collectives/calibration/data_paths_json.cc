#include "collectives/calibration/data_paths_json.h"

#include <cstdint>

namespace tidegate {

Status ReadDataPaths(const JsonView& object, DataPaths* paths) {
  std::int64_t chunk = 0;
  std::int64_t stream = 0;
  std::int64_t single_copy = 0;
  TIDEGATE_RETURN_IF_ERROR(object.Read("chunk_bytes", chunk, std::int64_t{kLeastChunkBytes},
                                       std::int64_t{kMostChunkBytes}));
  TIDEGATE_RETURN_IF_ERROR(
      object.Read("stream_bytes", stream, std::int64_t{0}, std::int64_t{kMostCallBytes}));
  TIDEGATE_RETURN_IF_ERROR(
      object.Read("single_copy_bytes", single_copy, std::int64_t{0}, std::int64_t{kMostCallBytes}));
  paths->chunk_bytes = static_cast<std::size_t>(chunk);
  paths->stream_bytes = static_cast<std::size_t>(stream);
  paths->single_copy_bytes = static_cast<std::size_t>(single_copy);
  return Status();
}

}  // namespace tidegate
