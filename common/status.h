#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "common/check.h"

namespace tidegate {

/// What went wrong, in the classes that callers treat differently. Only backend/error_translation
/// maps these to exceptions.
enum class StatusCode {
  kOk,
  kInvalidArgument,    ///< The caller's mistake; the message holds the offending value.
  kUnsupported,        ///< A legal request that this build or group does not serve.
  kMismatch,           ///< Ranks of one group asked for different things.
  kTimeout,            ///< A deadline passed; the message names who was missing.
  kPeerLost,           ///< Another rank's process died or left the group.
  kAborted,            ///< The group was aborted or shut down.
  kInterrupted,        ///< A signal asked the waiting thread to stop.
  kResourceExhausted,  ///< Memory, descriptors or another limit of the machine.
  kInternal,           ///< An operating-system call failed in a way that has no remedy above.
};

std::string_view StatusCodeName(StatusCode code);

/// The outcome of an operation that can fail for expected reasons. One pointer: null when ok, and
/// once moved from.
class [[nodiscard]] Status {
 public:
  Status() = default;
  /// Of kOk an ok one, whatever the message.
  Status(StatusCode code, std::string message) {
    if (code != StatusCode::kOk) failure_ = std::make_unique<Failure>(code, std::move(message));
  }
  Status(const Status& other)
      : failure_(other.ok() ? nullptr : std::make_unique<Failure>(*other.failure_)) {}
  Status(Status&& other) noexcept = default;
  Status& operator=(const Status& other) {
    if (this != &other) *this = Status(other);
    return *this;
  }
  Status& operator=(Status&& other) noexcept = default;
  ~Status() = default;

  bool ok() const { return failure_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : failure_->code; }
  /// Empty when ok.
  const std::string& message() const& { return ok() ? NoMessage() : failure_->message; }
  std::string message() && { return ok() ? std::string() : std::move(failure_->message); }

 private:
  struct Failure {
    Failure(StatusCode failure_code, std::string text)
        : code(failure_code), message(std::move(text)) {}
    StatusCode code;
    std::string message;
  };
  static const std::string& NoMessage();

  std::unique_ptr<Failure> failure_;
};

/// kInternal (or kResourceExhausted for EMFILE, ENFILE, ENOMEM, ENOSPC, EFBIG and EDQUOT) with
/// `what`, the errno text and its number.
Status ErrnoStatus(int error_number, std::string_view what);

/// A value or the Status that explains its absence (C++20 has no std::expected).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT: implicit by intent
  Result(Status status) : state_(std::move(status)) {  // NOLINT: implicit by intent
    TIDEGATE_CHECK(!std::get<Status>(state_).ok());
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  /// REQUIRES: ok().
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tidegate

/// Leaves the enclosing function with the Status of `expression` unless that is ok.
#define TIDEGATE_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::tidegate::Status tidegate_status = (expression); !tidegate_status.ok()) \
      return tidegate_status;                                                     \
  } while (false)
