#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "collectives/plan_book.h"
#include "collectives/prepared_call.h"
#include "collectives/requests.h"
#include "common/inline_vector.h"
#include "common/status.h"

namespace tidegate {

/// Makes the calls of one rank of a group, and remembers what they were like: a program makes the
/// same ones over and over, with other numbers and perhaps other addresses. One thread at a time.
class CallBook {
 public:
  /// `stage_bytes`: as Transport's.
  CallBook(PlanChoice choice, int rank, std::size_t stage_bytes);

  /// Makes `calls`, which is empty, of checked requests, numbered from `sequence` on, one operation
  /// together. Fails as PlanBook does. The calls are valid as long as the book, and bound together
  /// with their requests.
  Status Make(const Requests& requests, std::uint64_t sequence,
              InlineVector<PreparedCall, 1>* calls);

 private:
  struct Known {
    CollectiveRequest request;  ///< Its blocks tell how long they were, no more.
    CallTraits traits;          ///< Without a schedule nothing is known.
  };

  Known& PlaceFor(const CollectiveRequest& request);
  Status Learn(const CollectiveRequest& request, Known* known);

  const DataPaths paths_;
  const std::size_t stage_bytes_;
  PlanBook plans_;
  std::uint64_t shapes_ = 0;    ///< Numbers given out.
  std::array<Known, 8> known_;  ///< By what tells the calls of a program apart: the latest.
};

}  // namespace tidegate
