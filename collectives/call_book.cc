#include "collectives/call_book.h"

#include <utility>

#include "common/hash.h"

namespace tidegate {

CallBook::CallBook(PlanChoice choice, int rank, std::size_t stage_bytes)
    : paths_(choice.paths), stage_bytes_(stage_bytes), plans_(std::move(choice), rank) {}

Status CallBook::Make(const Requests& requests, std::uint64_t sequence,
                      InlineVector<PreparedCall, 1>* calls) {
  calls->reserve(requests.size());
  for (const CollectiveRequest& request : requests) {
    Known& known = PlaceFor(request);
    if (known.traits.schedule == nullptr || !HaveSameShape(known.request, request))
      TIDEGATE_RETURN_IF_ERROR(Learn(request, &known));
    Prepare(request, known.traits, sequence++, &calls->emplace_back());
  }
  BindTogether(*calls);
  return Status();
}

CallBook::Known& CallBook::PlaceFor(const CollectiveRequest& request) {
  std::uint64_t hash = MixHash(kHashSeed, static_cast<std::uint64_t>(request.collective));
  for (const Blocks* blocks : {&request.inputs, &request.outputs})
    if (!blocks->empty()) hash = MixHash(hash, blocks->front().bytes);
  return known_[(hash >> 32) % known_.size()];
}

Status CallBook::Learn(const CollectiveRequest& request, Known* known) {
  const Result<const Schedule*> schedule = plans_.For(request);
  TIDEGATE_RETURN_IF_ERROR(schedule.status());
  known->request = request;
  known->traits = TraitsOf(request, *schedule.value(), stage_bytes_, paths_);
  known->traits.shape = ++shapes_;
  return Status();
}

}  // namespace tidegate
