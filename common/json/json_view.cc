#include "common/json/json_view.h"

#include <algorithm>

#include "common/json/parse_json.h"

namespace tidegate {
namespace {

constexpr std::size_t kMostBytes = 200;

/// The value as it stands, cut to what fits a message.
std::string Shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

}  // namespace

std::string JsonView::path() const {
  if (parent_ == nullptr) return "$";
  const std::string above = parent_->path();
  if (parent_->json().is_array()) return above + "[" + std::to_string(index_) + "]";
  return above + "." + EscapeBytes(key_.substr(0, 60));
}

Status JsonView::Bad(std::string_view what) const {
  return Status(StatusCode::kInvalidArgument, path() + ": " + std::string(what));
}

Status JsonView::CheckObject(std::initializer_list<std::string_view> known) const {
  if (!value_->is_object()) return Bad("an object is wanted here, not " + Shown(*value_));
  for (const auto& [key, value] : value_->items()) {
    if (key == "comment" && value.is_string()) continue;
    if (std::ranges::find(known, key) != known.end()) continue;
    std::string keys;
    for (const std::string_view name : known)
      keys += (keys.empty() ? "" : ", ") + std::string(name);
    return Bad("unknown key \"" + EscapeBytes(key.substr(0, 60)) + "\"; known are " + keys);
  }
  return Status();
}

Status JsonView::CheckArray() const {
  if (value_->is_array()) return Status();
  return Bad("an array is wanted here, not " + Shown(*value_));
}

Status JsonView::Missing(std::string_view key) const {
  return Bad("the key \"" + std::string(key) + "\" is missing");
}

Status JsonView::Get(std::string& result) const {
  const auto* const text = value_->get_ptr<const std::string*>();
  if (text == nullptr) return Bad("a string is wanted here, not " + Shown(*value_));
  if (text->empty() || text->size() > kMostBytes)
    return Bad("a string of " + std::to_string(text->size()) + " bytes; it must have 1 to " +
               std::to_string(kMostBytes));
  result = *text;
  return Status();
}

Status JsonView::Get(double& result) const {
  if (!value_->is_number()) return Bad("a number is wanted here, not " + Shown(*value_));
  result = value_->get<double>();
  return Status();
}

Status JsonView::Get(bool& result) const {
  if (!value_->is_boolean()) return Bad("true or false is wanted here, not " + Shown(*value_));
  result = value_->get<bool>();
  return Status();
}

Status JsonView::Get(std::int64_t& result, std::int64_t least, std::int64_t most) const {
  const std::string range =
      "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value_->is_number_integer()) return Bad(range + " is wanted here, not " + Shown(*value_));
  const bool too_large = value_->is_number_unsigned() &&
                         value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const auto value = too_large ? INT64_MAX : value_->get<std::int64_t>();
  if (too_large || value < least || value > most)
    return Bad(range + " is wanted here, not " + Shown(*value_));
  result = value;
  return Status();
}

}  // namespace tidegate
