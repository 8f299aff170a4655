#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/status.h"

namespace tidegate {

/// A value inside a JSON document that knows its path, so that an error can say where it is:
/// "$.links[3].bandwidth_Bps: ...". Paths are put together only for errors. Views refer to the
/// document and to the view they were taken from; both must outlive them.
///
/// The readers return kInvalidArgument with the path and change their argument only if they
/// succeed.
class JsonView {
 public:
  explicit JsonView(const nlohmann::json& root) : value_(&root) {}

  const nlohmann::json& json() const { return *value_; }
  std::string path() const;
  Status Bad(std::string_view what) const;  ///< kInvalidArgument: "<path>: <what>".

  /// An object with no keys but `known` (and "comment", a string that nobody reads).
  Status CheckObject(std::initializer_list<std::string_view> known) const;
  Status CheckArray() const;

  bool has(std::string_view key) const { return value_->contains(key); }
  std::size_t size() const { return value_->size(); }
  /// REQUIRES: an array of more than `index` values.
  JsonView at(std::size_t index) const { return {(*value_)[index], this, {}, index}; }
  /// REQUIRES: has(key); `key` outlives the view.
  JsonView at(std::string_view key) const { return {*value_->find(key), this, key, 0}; }

  /// The value itself.
  Status Get(std::string& result) const;  ///< A string of 1 to 200 bytes.
  Status Get(double& result) const;       ///< A number.
  Status Get(bool& result) const;
  Status Get(std::int64_t& result, std::int64_t least, std::int64_t most) const;

  /// Get of a member that must be there.
  template <typename T, typename... Range>
  Status Read(std::string_view key, T& result, Range... range) const {
    if (!has(key)) return Missing(key);
    return at(key).Get(result, range...);
  }
  /// Get of a member that may be there.
  template <typename T, typename... Range>
  Status ReadOptional(std::string_view key, T& result, Range... range) const {
    return has(key) ? at(key).Get(result, range...) : Status();
  }

 private:
  JsonView(const nlohmann::json& value, const JsonView* parent, std::string_view key,
           std::size_t index)
      : value_(&value), parent_(parent), key_(key), index_(index) {}
  Status Missing(std::string_view key) const;

  const nlohmann::json* value_;
  const JsonView* parent_ = nullptr;
  std::string_view key_;   ///< In an object.
  std::size_t index_ = 0;  ///< In an array.
};

}  // namespace tidegate
