#include "collectives/group_context.h"

#include <utility>

#include "common/log.h"

namespace tidegate {

GroupContext::GroupContext(std::string name, Attachment attachment,
                           std::shared_ptr<GroupStatistics> statistics,
                           std::shared_ptr<GroupAdmission> admission)
    : name_(std::move(name)),
      attachment_(std::move(attachment)),
      statistics_(std::move(statistics)),
      admission_(std::move(admission)) {}

void GroupContext::Fail(StatusCode code, int culprit, const std::string& text) {
  if (!failed() && LogEnabled(LogLevel::kInfo))
    Log(LogLevel::kInfo, "group " + name_ + " fails: " + text);
  attachment_.transport->Fail({code, rank(), culprit, text});
  {
    const std::lock_guard lock(mutex_);
    if (own_failure_.ok()) own_failure_ = Status(code, text);
    failed_here_.store(true, std::memory_order_release);
  }
  attachment_.doorbell->Ring();
}

Status GroupContext::FailureOf(const std::string& call) const {
  if (!attachment_.transport->failed()) return Explain(call, own_failure_);
  GroupFailure failure = attachment_.transport->failure();
  if (failure.reporter >= 0 && failure.reporter != rank())
    failure.text += " (noticed by rank " + std::to_string(failure.reporter) + ")";
  return Explain(call, Status(failure.code, failure.text));
}

Status GroupContext::Explain(const std::string& call, const Status& reason) const {
  return Status(reason.code(), call + " of group " + name_ + " [" + std::to_string(ranks()) +
                                   " ranks] failed on rank " + std::to_string(rank()) + ": " +
                                   reason.message());
}

void GroupContext::LeaveLastWord() const {
  if (failed() && attachment_.leave_last_word) attachment_.leave_last_word();
}

std::string GroupContext::DescribePeers(const std::vector<int>& peers) const {
  std::string text;
  for (const int peer : peers)
    text += (text.empty() ? "" : ", ") + attachment_.transport->DescribePeer(peer);
  return text;
}

}  // namespace tidegate
