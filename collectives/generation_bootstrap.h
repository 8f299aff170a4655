#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "collectives/transport/bootstrap.h"

namespace tidegate {

/// Sets the keys of one life of a group apart from those of its earlier lives: programs destroy a
/// group and make it again, under the same name, on the same store. Each rank counts its own; since
/// all ranks make groups in the same order, equal counts mean the same life. Thread-safe.
class GenerationBootstrap final : public Bootstrap {
 public:
  /// Counts one more life of the group for `rank`.
  static Result<std::unique_ptr<Bootstrap>> Next(std::unique_ptr<Bootstrap> store, int rank) {
    const Result<std::int64_t> life = store->Increment("lives/" + std::to_string(rank));
    if (!life.ok()) return life.status();
    return std::unique_ptr<Bootstrap>(
        new GenerationBootstrap(std::move(store), "life/" + std::to_string(life.value()) + "/"));
  }

  Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(prefix_ + key, value);
  }
  Result<std::string> Get(const std::string& key, Nanoseconds timeout) override {
    return store_->Get(prefix_ + key, timeout);
  }
  Result<std::int64_t> Increment(const std::string& key) override {
    return store_->Increment(prefix_ + key);
  }

 private:
  GenerationBootstrap(std::unique_ptr<Bootstrap> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  const std::unique_ptr<Bootstrap> store_;
  const std::string prefix_;
};

}  // namespace tidegate
