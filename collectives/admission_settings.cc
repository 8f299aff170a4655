#include "collectives/admission_settings.h"

#include <algorithm>
#include <cstddef>

#include "collectives/transport/segment_layout.h"
#include "common/check.h"

namespace tidegate {
namespace {

/// A lane runs one operation after the other: with a second one behind it it never waits for its
/// caller, and more make nothing faster (docs/rate_limit.md has the table).
constexpr std::uint64_t kOpsThatCostNoSpeed = 2;

CountedLinks LinksOf(const std::string& word) {
  if (word == "node") return CountedLinks::kNode;
  return word == "net" ? CountedLinks::kNet : CountedLinks::kAll;
}

}  // namespace

Result<AdmissionLimits> LimitsOf(const Config& config) {
  const auto bad = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
  };
  if (!config.ag_rate && config.ag_burst)
    return bad("TIDEGATE_AG_BURST=" + std::to_string(*config.ag_burst) +
               " is the burst of no rate; set TIDEGATE_AG_RATE, too");
  const std::size_t slot_bytes = config.stage_bytes / kStageSlots;
  const std::size_t chunk_bytes = std::min(config.chunk_bytes.value_or(slot_bytes), slot_bytes);
  if (config.ag_rate && *config.ag_rate < chunk_bytes)
    return bad("TIDEGATE_AG_RATE=" + std::to_string(*config.ag_rate) +
               " is less than a chunk a second; legal are " + std::to_string(chunk_bytes) +
               " and more, or smaller chunks: see TIDEGATE_CHUNK_BYTES and TIDEGATE_STAGE_BYTES");
  AdmissionLimits limits{
      .in_flight = {config.ag_max_ops, config.ag_max_bytes},
      .overflow = config.ag_wait == "block" ? Overflow::kBlock : Overflow::kQueue,
      .rate = config.ag_rate,
      .burst = config.ag_burst,
      .links = LinksOf(config.ag_links)};
  if (config.ag_auto)
    limits.in_flight.ops =
        std::min(limits.in_flight.ops.value_or(kOpsThatCostNoSpeed), kOpsThatCostNoSpeed);
  return limits;
}

Result<AdmissionLimits> LimitsOf(const LimitTexts& texts, const Config& config) {
  Config asked;
  asked.stage_bytes = config.stage_bytes;
  asked.chunk_bytes = config.chunk_bytes;
  for (const auto& [name, value] : texts) {
    TIDEGATE_CHECK(name.starts_with("TIDEGATE_AG_"));
    TIDEGATE_RETURN_IF_ERROR(SetByName(asked, name, value));
  }
  return LimitsOf(asked);
}

}  // namespace tidegate
