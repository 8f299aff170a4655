#include "common/json/parse_json.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "common/units.h"

namespace tidegate {
namespace {

using Json = nlohmann::json;

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

std::string Place(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? offset : offset - newline - 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

/// Offset of the bracket that opens one level too many; npos: none does. Looks at brackets outside
/// strings only, which is exact for well-formed text and harmless for other.
std::size_t TooDeep(std::string_view text, std::size_t most) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most) return i;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return std::string_view::npos;
}

/// Builds the value and stops at a key that is there already, of which the library's own parser
/// would keep the last one silently.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json& result() { return root_; }
  const std::string& duplicate() const { return duplicate_; }
  /// Where the text is malformed, and how; "" if it is not.
  std::size_t error_offset() const { return error_offset_; }
  const std::string& error() const { return error_; }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(std::int64_t value) override { return Put(value); }
  bool number_unsigned(std::uint64_t value) override { return Put(value); }
  bool number_float(double value, const std::string& /*text*/) override { return Put(value); }
  bool string(std::string& value) override { return Put(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) override { return false; }

  bool start_object(std::size_t /*elements*/) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t /*elements*/) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    const auto [entry, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!is_new) duplicate_ = name;
    member_ = &entry->second;
    return is_new;
  }

  bool parse_error(std::size_t offset, const std::string& token,
                   const Json::exception& why) override {
    error_offset_ = offset;
    // Of "[json.exception.parse_error.101] parse error at line 1, column 2: ..." the last part.
    const std::string_view what = why.what();
    const std::size_t colon = what.find("column");
    const std::size_t begin = what.find(": ", colon == std::string_view::npos ? 0 : colon);
    error_ = begin == std::string_view::npos ? "cannot read \"" + token.substr(0, 40) + "\""
                                             : std::string(what.substr(begin + 2));
    if (error_.size() > 300) error_ = error_.substr(0, 300) + "...";
    return false;
  }

 private:
  template <typename T>
  Json* Add(T&& value) {
    if (open_.empty()) {
      root_ = Json(std::forward<T>(value));
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(Json(std::forward<T>(value)));
      return &open_.back()->back();
    }
    *member_ = Json(std::forward<T>(value));
    return member_;
  }
  template <typename T>
  bool Put(T&& value) {
    Add(std::forward<T>(value));
    return true;
  }
  bool Open(Json&& empty) {
    open_.push_back(Add(std::move(empty)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  ///< The objects and arrays around the next value.
  Json* member_ = nullptr;   ///< Value of the key that was read last.
  std::string duplicate_;
  std::string error_;
  std::size_t error_offset_ = 0;
};

}  // namespace

std::string EscapeBytes(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c >= ' ' && c <= '~') {
      escaped += c;
      continue;
    }
    char code[5];
    std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(c));
    escaped += code;
  }
  return escaped;
}

Result<nlohmann::json> ParseJson(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    return Bad("the text has " + FormatBytes(text.size()) + "; at most " +
               FormatBytes(limits.bytes) + " are read");
  if (const std::size_t at = TooDeep(text, limits.depth); at != std::string_view::npos)
    return Bad(Place(text, at + 1) + ": more than " + std::to_string(limits.depth) +
               " objects and arrays inside each other");
  Builder builder;
  if (Json::sax_parse(text, &builder)) return std::move(builder.result());
  if (!builder.duplicate().empty() || builder.error().empty())
    return Bad("an object has the key \"" + EscapeBytes(builder.duplicate().substr(0, 100)) +
               "\" twice; leave one out");
  return Bad(Place(text, std::min(builder.error_offset(), text.size())) + ": " +
             EscapeBytes(builder.error()));
}

Result<std::string> ReadTextFile(const std::string& path, std::size_t most_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return Bad("cannot read " + path + ": " +
               (error ? error.message() : std::string("it is no regular file")));
  std::ifstream file(path, std::ios::binary);
  if (!file) return Bad("cannot read " + path + ": " + std::strerror(errno));
  std::string text;
  std::vector<char> piece(std::size_t{1} << 16);
  // The size that a file system states is no bound: /proc says 0, and files grow.
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > most_bytes)
      return Bad("cannot read " + path + ": it has more than " + FormatBytes(most_bytes));
  }
  return text;
}

Status ReplaceTextFile(const std::string& path, const std::string& text) {
  const auto failed = [](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, why);
  };
  const std::string draft = path + "." + std::to_string(getpid());
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  if (!file) return failed("it cannot be created");
  file << text;
  file.close();
  std::error_code error;
  if (!file) {
    std::filesystem::remove(draft, error);
    return failed("the file system is full or failing");
  }
  std::filesystem::rename(draft, path, error);
  if (!error) return Status();
  const std::string why = error.message();
  std::filesystem::remove(draft, error);
  return failed(why);
}

}  // namespace tidegate
