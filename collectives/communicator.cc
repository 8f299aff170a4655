#include "collectives/communicator.h"

#include <limits>
#include <utility>

#include "collectives/communicator_impl.h"
#include "collectives/generation_bootstrap.h"
#include "collectives/interrupt.h"
#include "collectives/planner/choices.h"
#include "collectives/transport/loopback/loopback.h"
#include "collectives/transport/shm/shm_transport.h"
#include "common/log.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

/// A rank alone shares nothing and never waits.
Result<Attachment> AttachAlone(std::size_t stage_bytes) {
  const auto group = std::make_shared<LoopbackGroup>(1, stage_bytes);
  return Attachment{.transport = {group, &group->transport(0)},
                    .doorbell = std::make_shared<Doorbell>(),
                    .max_sleep = [] { return Nanoseconds(std::chrono::milliseconds(100)); },
                    .oversubscribed = false};
}

Result<Attachment> AttachSharedMemory(const ShmTransport::Options& options,
                                      const std::shared_ptr<Bootstrap>& bootstrap) {
  const Result<std::shared_ptr<NodeService>> service = NodeService::Get();
  TIDEGATE_RETURN_IF_ERROR(service.status());
  Result<std::unique_ptr<ShmTransport>> attached = ShmTransport::Attach(options);
  TIDEGATE_RETURN_IF_ERROR(attached.status());
  const std::shared_ptr<ShmTransport> transport = std::move(attached).value();
  static const int cpus = UsableCpus();
  return Attachment{
      .transport = transport,
      .doorbell = {service.value(), &transport->doorbell()},
      .max_sleep = [transport] { return transport->max_sleep(); },
      .oversubscribed = options.ranks > cpus,
      .leave_last_word = [transport, bootstrap] { transport->LeaveLastWord(*bootstrap); }};
}

AlgorithmTable TableFor(const AlgorithmChoices& choices) {
  AlgorithmTable table = AlgorithmTable::Default();
  for (const auto& [collective, name] : choices) {
    table.Clear(collective);
    table.Add(collective, std::numeric_limits<std::size_t>::max(),
              FindAlgorithm(collective, name)->build);
  }
  return table;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::Create(CommunicatorOptions options) {
  if (options.ranks < 1 || options.ranks > kMaxRanks)
    return Status(StatusCode::kInvalidArgument, "a group has 1 to " + std::to_string(kMaxRanks) +
                                                    " ranks, got " + std::to_string(options.ranks));
  if (options.rank < 0 || options.rank >= options.ranks)
    return Status(StatusCode::kInvalidArgument, "rank " + std::to_string(options.rank) +
                                                    " is outside [0, " +
                                                    std::to_string(options.ranks) + ")");
  // All ranks of a group are on one node as yet.
  const Result<AlgorithmChoices> choices = ParseAlgorithmChoices(options.config.algo);
  TIDEGATE_RETURN_IF_ERROR(choices.status());
  TIDEGATE_RETURN_IF_ERROR(CheckChoices(choices.value(), Placement::OneNode(options.ranks)));
  if (options.global_ranks.empty()) {
    for (int rank = 0; rank < options.ranks; ++rank) options.global_ranks.push_back(rank);
    StatisticsRegistry::Process().SetRank(options.rank);
    SetLogRank(options.rank);
  }
  const std::size_t stage_bytes = options.config.stage_bytes;
  Membership membership;
  if (options.ranks == 1) {
    membership.attach = [stage_bytes](TimePoint, const std::atomic<bool>&) {
      return AttachAlone(stage_bytes);
    };
  } else {
    TIDEGATE_CHECK(options.bootstrap != nullptr);
    Result<std::unique_ptr<Bootstrap>> store =
        GenerationBootstrap::Next(std::move(options.bootstrap), options.rank);
    if (!store.ok()) return store.status();
    const std::shared_ptr<Bootstrap> bootstrap = std::move(store).value();
    TIDEGATE_RETURN_IF_ERROR(ShmTransport::AnnouncePresence(*bootstrap, options.rank));
    const auto shm_options = [name = options.group_name, rank = options.rank, ranks = options.ranks,
                              stage_bytes, bootstrap](TimePoint deadline) {
      return ShmTransport::Options{.group_name = name,
                                   .rank = rank,
                                   .ranks = ranks,
                                   .stage_bytes = stage_bytes,
                                   .bootstrap = bootstrap.get(),
                                   .deadline = deadline,
                                   .interrupted = Interrupted};
    };
    membership.attach = [shm_options, bootstrap](TimePoint deadline,
                                                 const std::atomic<bool>& cancelled) {
      ShmTransport::Options attach_options = shm_options(deadline);
      attach_options.cancelled = &cancelled;
      return AttachSharedMemory(attach_options, bootstrap);
    };
    membership.decline = [shm_options](const Status& reason) {
      ShmTransport::Decline(shm_options(kNoDeadline), reason);
    };
  }
  return std::shared_ptr<Communicator>(
      CommunicatorImpl::Make(std::move(options), std::move(membership), TableFor(choices.value())));
}

}  // namespace tidegate
