#include "common/status.h"

#include <cerrno>
#include <cstring>

namespace tidegate {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kUnsupported:
      return "Unsupported";
    case StatusCode::kMismatch:
      return "Mismatch";
    case StatusCode::kTimeout:
      return "Timeout";
    case StatusCode::kPeerLost:
      return "PeerLost";
    case StatusCode::kAborted:
      return "Aborted";
    case StatusCode::kInterrupted:
      return "Interrupted";
    case StatusCode::kResourceExhausted:
      return "ResourceExhausted";
    case StatusCode::kInternal:
      return "Internal";
  }
  return "Unknown";
}

namespace {

StatusCode CodeOfErrno(int error_number) {
  switch (error_number) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case EFBIG:
    case EDQUOT:
      return StatusCode::kResourceExhausted;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

const std::string& Status::NoMessage() {
  static const auto* const none = new std::string;  // Leaked: used until the very end.
  return *none;
}

Status ErrnoStatus(int error_number, std::string_view what) {
  // The GNU strerror_r, unlike strerror, may be called from several threads.
  char buffer[128];
  const char* text = strerror_r(error_number, buffer, sizeof(buffer));
  return Status(CodeOfErrno(error_number),
                std::string(what) + ": " + text + " (errno " + std::to_string(error_number) + ")");
}

}  // namespace tidegate
