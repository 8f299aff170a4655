#include "collectives/communicator.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "collectives/admission/admission.h"
#include "collectives/communicator_impl.h"
#include "collectives/interrupt.h"
#include "collectives/plan_basis.h"
#include "collectives/planned_choice.h"
#include "collectives/planner/choices.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/transport/loopback/loopback.h"
#include "collectives/transport/shm/shm_transport.h"
#include "common/log.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

/// How a group plans, apart from the machine.
struct PlanSettings {
  AlgorithmChoices forced;
  std::size_t slot_bytes = 0;
};

/// A rank alone shares nothing and never waits.
Result<Attachment> AttachAlone(std::size_t stage_bytes, const PlanSettings& settings) {
  static const std::string basis = FormatPlanBasis(
      {.declared = {MakeFakeCluster(std::vector<int>{1}, {}).value(), LocalRates()}});
  // What is forced for the job may be impossible for one rank, and makes no difference to it.
  Result<PlanChoice> plans = PlannedChoice(basis, 1, {}, settings.slot_bytes);
  TIDEGATE_RETURN_IF_ERROR(plans.status());
  const auto group = std::make_shared<LoopbackGroup>(1, stage_bytes);
  return Attachment{.transport = {group, &group->transport(0)},
                    .doorbell = std::make_shared<Doorbell>(),
                    .max_sleep = [] { return Nanoseconds(std::chrono::milliseconds(100)); },
                    .ranks_per_cpu = [] { return 1; },
                    .plans = std::move(plans).value()};
}

Result<Attachment> AttachSharedMemory(const ShmTransport::Options& options,
                                      const std::shared_ptr<Bootstrap>& bootstrap,
                                      const PlanSettings& settings) {
  const Result<std::shared_ptr<NodeService>> service = NodeService::Get();
  TIDEGATE_RETURN_IF_ERROR(service.status());
  Result<std::unique_ptr<ShmTransport>> attached = ShmTransport::Attach(options);
  TIDEGATE_RETURN_IF_ERROR(attached.status());
  const std::shared_ptr<ShmTransport> transport = std::move(attached).value();
  Result<PlanChoice> plans =
      PlannedChoice(transport->agreement(), options.ranks, settings.forced, settings.slot_bytes);
  if (!plans.ok()) {
    // The others have seen this rank in the group: it must not seem to have left in peace.
    transport->Fail({plans.status().code(), options.rank, options.rank,
                     "rank " + std::to_string(options.rank) + " cannot plan for group " +
                         options.group_name + ": " + plans.status().message()});
    return plans.status();
  }
  return Attachment{
      .transport = transport,
      .doorbell = {service.value(), &transport->doorbell()},
      .max_sleep = [transport] { return transport->max_sleep(); },
      .ranks_per_cpu = [transport] { return transport->ranks_per_cpu(); },
      .leave_last_word = [transport, bootstrap] { transport->LeaveLastWord(*bootstrap); },
      .plans = std::move(plans).value()};
}

/// In each group the ranks together may have as much as there is, since what is free is nobody's
/// yet; but a process with a thousand groups must still have addresses for them.
std::size_t RegionBytes(const Config& config, int ranks) {
  if (config.heap_bytes) return *config.heap_bytes;
  constexpr std::uint64_t kMost = std::uint64_t{64} << 30;
  constexpr std::size_t kPage = 4096;
  static const std::uint64_t memory = std::min(TotalMemory(), kMost);
  return static_cast<std::size_t>(memory) / static_cast<std::size_t>(ranks) / kPage * kPage;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::Create(CommunicatorOptions options) {
  const Result<AdmissionLimits> limits = LimitsOf(options.config);
  TIDEGATE_RETURN_IF_ERROR(limits.status());
  Admission::Process().SetDefaults(limits.value());
  if (options.ranks < 1 || options.ranks > kMaxRanks)
    return Status(StatusCode::kInvalidArgument, "a group has 1 to " + std::to_string(kMaxRanks) +
                                                    " ranks, got " + std::to_string(options.ranks));
  if (options.rank < 0 || options.rank >= options.ranks)
    return Status(StatusCode::kInvalidArgument, "rank " + std::to_string(options.rank) +
                                                    " is outside [0, " +
                                                    std::to_string(options.ranks) + ")");
  const Result<AlgorithmChoices> choices = ParseAlgorithmChoices(options.config.algo);
  TIDEGATE_RETURN_IF_ERROR(choices.status());
  // All ranks of a group are on one node, unless a file says otherwise.
  if (options.config.topo_file.empty() && options.ranks > 1)
    TIDEGATE_RETURN_IF_ERROR(CheckChoices(choices.value(), Placement::OneNode(options.ranks)));
  const PlanSettings settings{choices.value(), options.config.stage_bytes / kStageSlots};
  const std::vector<int> members(options.global_ranks.begin(), options.global_ranks.end());
  // A group of some ranks of the job is made after the job's own.
  static std::atomic<int> ranks_of_job{0};
  if (members.empty()) {
    ranks_of_job = options.ranks;
    for (int rank = 0; rank < options.ranks; ++rank) options.global_ranks.push_back(rank);
    StatisticsRegistry::Process().SetRank(options.rank);
    SetLogRank(options.rank);
  }
  const std::size_t stage_bytes = options.config.stage_bytes;
  const std::size_t region_bytes = RegionBytes(options.config, options.ranks);
  Membership membership;
  if (options.ranks == 1) {
    membership.attach = [stage_bytes, settings](TimePoint, const std::atomic<bool>&) {
      return AttachAlone(stage_bytes, settings);
    };
  } else {
    TIDEGATE_CHECK(options.bootstrap != nullptr);
    const std::shared_ptr<Bootstrap> bootstrap = std::move(options.bootstrap);
    TIDEGATE_RETURN_IF_ERROR(
        ShmTransport::AnnouncePresence(*bootstrap, options.rank, options.config.node_id));
    const auto shm_options = [name = options.group_name, rank = options.rank, ranks = options.ranks,
                              stage_bytes, region_bytes, bootstrap, members,
                              config = options.config](TimePoint deadline) {
      return ShmTransport::Options{.group_name = name,
                                   .rank = rank,
                                   .ranks = ranks,
                                   .stage_bytes = stage_bytes,
                                   .region_bytes = region_bytes,
                                   .bootstrap = bootstrap.get(),
                                   .deadline = deadline,
                                   .interrupted = Interrupted,
                                   .node_id = config.node_id,
                                   .agreement = [config, ranks, members]() -> Result<std::string> {
                                     const Result<PlanBasis> basis =
                                         MakePlanBasis(config, ranks, members, ranks_of_job);
                                     if (!basis.ok()) return basis.status();
                                     return FormatPlanBasis(basis.value());
                                   }};
    };
    membership.attach = [shm_options, bootstrap, settings](TimePoint deadline,
                                                           const std::atomic<bool>& cancelled) {
      ShmTransport::Options attach_options = shm_options(deadline);
      attach_options.cancelled = &cancelled;
      return AttachSharedMemory(attach_options, bootstrap, settings);
    };
    membership.decline = [shm_options](const Status& reason) {
      ShmTransport::Decline(shm_options(kNoDeadline), reason);
    };
  }
  return std::shared_ptr<Communicator>(
      CommunicatorImpl::Make(std::move(options), std::move(membership)));
}

Status SetLimits(const LimitTexts& texts) {
  const Result<Config> config = ProcessConfig();
  TIDEGATE_RETURN_IF_ERROR(config.status());
  const Result<AdmissionLimits> limits = LimitsOf(texts, config.value());
  TIDEGATE_RETURN_IF_ERROR(limits.status());
  Admission::Process().SetLimits(limits.value());
  return Status();
}

}  // namespace tidegate
