#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/status.h"

namespace tidegate {

/// What text from outside must not exceed.
struct JsonLimits {
  std::size_t bytes = std::size_t{64} << 20;
  std::size_t depth = 32;  ///< Objects and arrays inside each other.
};

/// Parses strict JSON (RFC 8259, no comments). kInvalidArgument with line and column for malformed
/// or empty text, a key that an object has twice, nesting or size over the limit, and numbers that
/// no double holds. Memory: about ten times the text.
Result<nlohmann::json> ParseJson(std::string_view text, const JsonLimits& limits = {});

/// For messages: `text` with \xff and the like for bytes that are no printable ASCII, so that what
/// is no UTF-8, or cut within a character, can be shown.
std::string EscapeBytes(std::string_view text);

/// The contents of the regular file `path`. kInvalidArgument, naming it, if it is not there, is
/// something else than a file or has more than `most_bytes`.
Result<std::string> ReadTextFile(const std::string& path, std::size_t most_bytes);

/// Writes a file as a whole or not at all: other processes may read or write it meanwhile.
/// kInvalidArgument with the reason, without the path, if that cannot be done.
Status ReplaceTextFile(const std::string& path, const std::string& text);

}  // namespace tidegate
