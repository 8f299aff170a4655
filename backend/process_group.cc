#include "backend/process_group.h"

#include <memory>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "backend/store_bootstrap.h"
#include "common/config.h"
#include "common/log.h"
#include "common/units.h"

namespace tidegate {
namespace {

int GlobalRank(const CommunicatorOptions& options) {
  const bool in_range =
      options.rank >= 0 && static_cast<std::size_t>(options.rank) < options.global_ranks.size();
  return in_range ? static_cast<int>(options.global_ranks[options.rank]) : options.rank;
}

/// The line a group at level INFO.
std::string Describe(const CommunicatorOptions& options) {
  const std::string members = options.global_ranks.empty() ? c10::str("0 to ", options.ranks - 1)
                                                           : c10::str(options.global_ranks);
  return c10::str("group ", options.group_name, ": rank ", options.rank, " of ", options.ranks,
                  ", global ranks ", members, ", transport shm, stage ",
                  FormatBytes(options.config.stage_bytes), " a rank and lane, 2 lanes, timeout ",
                  std::chrono::duration<double>(options.timeout).count(), " s");
}

}  // namespace

ProcessGroupTidegate::Options::Options(std::chrono::milliseconds timeout)
    : c10d::Backend::Options("tidegate", timeout) {}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTidegate::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}

auto ProcessGroupTidegate::Create(c10::intrusive_ptr<c10d::Store> store, int rank, int ranks,
                                  std::chrono::milliseconds timeout, const std::string& group_name,
                                  std::vector<std::int64_t> global_ranks,
                                  const c10::intrusive_ptr<Options>& options)
    -> c10::intrusive_ptr<ProcessGroupTidegate> {
  if (Status checked = CheckTimeout(timeout); !checked.ok()) {
    ThrowStatus(Status(checked.code(), "group " + group_name + ": " + checked.message()));
  }
  Result<Config> config = ProcessConfig();
  if (!config.ok()) ThrowStatus(config.status());
  auto own_options =
      options ? c10::make_intrusive<Options>(*options) : c10::make_intrusive<Options>(timeout);
  own_options->timeout = timeout;
  own_options->group_name = group_name;
  own_options->global_ranks_in_group.assign(global_ranks.begin(), global_ranks.end());

  if (ranks > 1) {
    auto of_this_life = StoreOfNextLife(store, rank, ranks, global_ranks);
    if (!of_this_life.ok()) ThrowStatus(of_this_life.status());
    store = std::move(of_this_life).value();
  }
  CommunicatorOptions core;
  core.group_name = group_name;
  core.rank = rank;
  core.ranks = ranks;
  core.global_ranks = std::move(global_ranks);
  core.timeout = ToNanoseconds(timeout);
  if (!own_options->limits.empty()) {
    Result<AdmissionLimits> limits = LimitsOf(own_options->limits, config.value());
    if (!limits.ok()) ThrowStatus(limits.status());
    core.limits = limits.value();
  }
  core.config = std::move(config).value();
  core.bootstrap = std::make_unique<StoreBootstrap>(store);
  SetLogRank(GlobalRank(core));
  if (LogEnabled(LogLevel::kInfo)) Log(LogLevel::kInfo, Describe(core));
  auto communicator = Communicator::Create(std::move(core));
  if (!communicator.ok()) ThrowStatus(communicator.status());
  return c10::make_intrusive<ProcessGroupTidegate>(std::move(communicator).value(),
                                                   std::move(store), std::move(own_options));
}

ProcessGroupTidegate::ProcessGroupTidegate(std::shared_ptr<Communicator> communicator,
                                           c10::intrusive_ptr<c10d::Store> store,
                                           c10::intrusive_ptr<Options> options)
    : c10d::Backend(communicator->rank(), communicator->ranks()),
      communicator_(std::move(communicator)),
      options_(std::move(options)),
      timeout_(options_->timeout),
      monitored_barrier_(
          std::move(store), rank_, size_,
          {options_->global_ranks_in_group.begin(), options_->global_ranks_in_group.end()}) {
  init();
}

ProcessGroupTidegate::~ProcessGroupTidegate() {
  const GilRelease released;
  communicator_->Shutdown();
}

const std::string ProcessGroupTidegate::getBackendName() const { return "tidegate"; }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTidegate::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(*options_);
  options->timeout = timeout_;
  return options;
}

std::uint64_t ProcessGroupTidegate::getSequenceNumberForGroup() {
  return communicator_->sequence();
}

void ProcessGroupTidegate::SetLimits(const LimitTexts& limits) {
  const Result<Config> config = ProcessConfig();
  if (!config.ok()) ThrowStatus(config.status());
  const Result<AdmissionLimits> parsed = LimitsOf(limits, config.value());
  if (!parsed.ok()) ThrowStatus(parsed.status());
  communicator_->SetLimits(parsed.value());
}

void ProcessGroupTidegate::setTimeout(std::chrono::milliseconds timeout) {
  if (Status checked = CheckTimeout(timeout); !checked.ok()) {
    ThrowStatus(Explain("set_timeout", checked));
  }
  timeout_ = timeout;
  communicator_->set_timeout(ToNanoseconds(timeout));
}

// c10d passes the index alone: cpu has none (-1), cuda one.
bool ProcessGroupTidegate::supportsTensorAlloc(c10::DeviceIndex device) { return device < 0; }

at::Tensor ProcessGroupTidegate::allocateTensor(long numel, at::TensorOptions options) {
  if (!options.device().is_cpu() || numel < 0) {
    C10_THROW_ERROR(ValueError, c10::str("allocate_tensor of group ", communicator_->group_name(),
                                         ": this build allocates cpu tensors of 0 or more elements;"
                                         " got ",
                                         numel, " on ", options.device()));
  }
  const std::size_t bytes = static_cast<std::size_t>(numel) * options.dtype().itemsize();
  if (bytes == 0) return at::empty({numel}, options);
  Result<std::shared_ptr<std::byte>> memory = [&] {
    const GilRelease released;  // The group's first operation may block.
    return communicator_->Allocate(bytes);
  }();
  if (!memory.ok()) ThrowStatus(Explain("allocate_tensor", memory.status()));
  if (memory.value() == nullptr) return at::empty({numel}, options);
  // The storage holds the memory, and with it the mapping, whatever becomes of the group.
  const std::shared_ptr<std::byte> held = std::move(memory).value();
  return at::from_blob(held.get(), {numel}, [held](void*) {}, options);
}

c10d::ErrorType ProcessGroupTidegate::getError() {
  switch (communicator_->failure().code()) {
    case StatusCode::kOk:
      return c10d::ErrorType::SUCCESS;
    case StatusCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case StatusCode::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupTidegate::abort() {
  const GilRelease released;
  closed_ = true;
  communicator_->Abort("abort() was called on rank " + std::to_string(rank_));
}

void ProcessGroupTidegate::shutdown() {
  const GilRelease released;
  closed_ = true;
  communicator_->Shutdown();
  ThrowPendingSignal();
}

Status ProcessGroupTidegate::Explain(std::string_view call, const Status& reason) const {
  return Status(reason.code(), std::string(call) + " in group " + communicator_->group_name() +
                                   ", rank " + std::to_string(rank_) + " of " +
                                   std::to_string(size_) + ": " + reason.message());
}

Nanoseconds ProcessGroupTidegate::TimeoutOf(std::chrono::milliseconds timeout) const {
  return ToNanoseconds(timeout == c10d::kUnsetTimeout ? timeout_.load() : timeout);
}

CommsGroup ProcessGroupTidegate::DescribeGroup() const {
  return CommsGroup(communicator_->group_name(), getGroupDesc(), size_,
                    options_->global_ranks_in_group);
}

}  // namespace tidegate
