#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

/// `store` with keys of one life of a group: programs destroy a group and make it again, of the
/// same ranks or of others, under the same name, on the same store. Each rank counts its own lives
/// of a group of these members, which all make it in the same order: equal counts mean the same
/// life. `global_ranks` is empty for all ranks of the job.
Result<c10::intrusive_ptr<c10d::Store>> StoreOfNextLife(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks,
    const std::vector<std::int64_t>& global_ranks);

}  // namespace tidegate
