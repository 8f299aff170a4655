#include "collectives/group_context.h"

#include <utility>

#include "common/log.h"

namespace tidegate {

GroupContext::GroupContext(std::string name, Attachment attachment,
                           std::shared_ptr<GroupStatistics> statistics)
    : name_(std::move(name)),
      attachment_(std::move(attachment)),
      statistics_(std::move(statistics)) {}

void GroupContext::Fail(StatusCode code, int culprit, const std::string& text) {
  if (!failed() && LogEnabled(LogLevel::kInfo))
    Log(LogLevel::kInfo, "group " + name_ + " fails: " + text);
  attachment_.transport->Fail({code, rank(), culprit, text});
  attachment_.doorbell->Ring();
}

Status GroupContext::FailureOf(const std::string& call, const Status& fallback) const {
  StatusCode code = fallback.code();
  std::string text = fallback.message();
  if (failed()) {
    const GroupFailure failure = attachment_.transport->failure();
    code = failure.code;
    text = failure.text;
    if (failure.reporter >= 0 && failure.reporter != rank())
      text += " (noticed by rank " + std::to_string(failure.reporter) + ")";
  }
  return Status(code, call + " of group " + name_ + " [" + std::to_string(ranks()) +
                          " ranks] failed on rank " + std::to_string(rank()) + ": " + text);
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
