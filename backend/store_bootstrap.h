#pragma once

#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "collectives/transport/bootstrap.h"
#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// Bootstrap over the Store that c10d made for one group (a PrefixStore: its keys are private to
/// the group). Thread-safe as far as the store is, which those of c10d are. No exception of the
/// store gets out: a store that cannot be reached is kInternal with the store's own words.
class StoreBootstrap final : public Bootstrap {
 public:
  explicit StoreBootstrap(c10::intrusive_ptr<c10d::Store> store);

  Status Set(const std::string& key, const std::string& value) override;
  Result<std::string> Get(const std::string& key, Nanoseconds timeout) override;
  Result<std::int64_t> Increment(const std::string& key) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace tidegate
