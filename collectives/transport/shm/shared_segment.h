#pragma once

#include "common/mapping.h"
#include "common/unique_fd.h"

namespace tidegate {

/// A group's memory in this process. Shared by the group's transport and the tensors that lie in
/// it, which may outlive the group.
struct SharedSegment {
  UniqueFd fd;
  Mapping mapping;
};

}  // namespace tidegate
