#include "backend/store_bootstrap.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace tidegate {
namespace {

// A look at a TCPStore takes 50 to 100 us on one host; 2 ms is invisible in the creation of a group
// and lets one server stand thousands of ranks that wait.
constexpr Nanoseconds kFirstPause = std::chrono::microseconds(50);
constexpr Nanoseconds kLongestPause = std::chrono::milliseconds(2);

// All that a rank can know whose peers lived and died before it came: who failed, and why, stands
// in the group's segment, and the way there leads through the store.
constexpr char kServerGone[] =
    "; the process that serves the store (rank 0, or torchrun's agent) has left or cannot be "
    "reached: its output says why";

Status StoreError(const char* action, const std::string& key, const std::string& reason) {
  return Status(StatusCode::kInternal, std::string("the c10d store could not ") + action +
                                           " key \"" + key + "\": " + reason);
}

// Runs `call` and turns what it throws into a Status; its result type is Status or a Result.
template <typename Call>
std::invoke_result_t<Call> Guarded(const char* action, const std::string& key, Call&& call) {
  try {
    return call();
  } catch (const c10::DistNetworkError& error) {
    return StoreError(action, key, std::string(error.what_without_backtrace()) + kServerGone);
  } catch (const c10::Error& error) {
    return StoreError(action, key, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return StoreError(action, key, error.what());
  } catch (...) {
    return StoreError(action, key, "unknown exception");
  }
}

}  // namespace

StoreBootstrap::StoreBootstrap(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

Status StoreBootstrap::Set(const std::string& key, const std::string& value) {
  return Guarded("set", key, [&] {
    store_->set(key, value);
    return Status();
  });
}

// Looks again and again instead of calling Store::wait: a wait holds the connection, which all
// groups of the process share, so two groups that start in opposite order on two ranks would each
// wait for a key that the other one cannot set.
Result<std::string> StoreBootstrap::Get(const std::string& key, Nanoseconds timeout) {
  return Guarded("get", key, [&]() -> Result<std::string> {
    const TimePoint deadline = DeadlineAfter(SteadyClock().Now(), timeout);
    const std::vector<std::string> keys{key};
    for (Nanoseconds pause = kFirstPause; !store_->check(keys);
         pause = std::min(2 * pause, kLongestPause)) {
      const TimePoint now = SteadyClock().Now();
      if (now >= deadline) {
        return Status(StatusCode::kTimeout,
                      "key \"" + key + "\" of the c10d store was not set by its rank in time");
      }
      std::this_thread::sleep_for(std::min<Nanoseconds>(pause, deadline - now));
    }
    return store_->get_to_str(key);
  });
}

Result<std::int64_t> StoreBootstrap::Increment(const std::string& key) {
  return Guarded("increment", key, [&]() -> Result<std::int64_t> { return store_->add(key, 1); });
}

Result<c10::intrusive_ptr<c10d::Store>> StoreOfNextLife(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks,
    const std::vector<std::int64_t>& global_ranks) {
  std::string members = global_ranks.empty() ? "all_" + std::to_string(ranks) : "ranks";
  for (const std::int64_t member : global_ranks) members += "_" + std::to_string(member);
  const Result<std::int64_t> life =
      StoreBootstrap(store).Increment("lives/" + members + "/" + std::to_string(rank));
  if (!life.ok()) return life.status();
  return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::PrefixStore>(
      "life/" + members + "/" + std::to_string(life.value()), store));
}

}  // namespace tidegate
