#pragma once

#include <string_view>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "collectives/schedule/schedule.h"

namespace tidegate {

/// A kind of call as c10d and its tools see it. All instances are constants: the profiler keeps the
/// pointer to the title.
struct CallKind {
  static constexpr std::string_view kPrefix = "tidegate:";

  const char* title;  ///< kPrefix and the name of the call as the newest c10d spells it.
  c10d::OpType op_type;
  Collective collective;  ///< Meaningless for send and recv.
  /// What trace tools call it: the name of ProcessGroupNCCL.
  const char* trace_name;

  bool IsTransfer() const {
    return op_type == c10d::OpType::SEND || op_type == c10d::OpType::RECV ||
           op_type == c10d::OpType::RECVANYSOURCE;
  }
  std::string_view name() const { return std::string_view(title).substr(kPrefix.size()); }
};

}  // namespace tidegate
