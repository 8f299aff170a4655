#include "backend/coalescing.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <utility>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include "common/clock.h"

namespace tidegate {
namespace {

using c10::ivalue::Future;

struct Entry {
  std::shared_ptr<CoalescingWindow> window;
  CoalescingWindows::Works works;
};

/// The windows of this thread by the group's id. Of the thread, not of the group by the thread's
/// number: a thread that ends takes its windows along, and a later one may get its number.
std::map<std::uint64_t, Entry>& EntriesHere() {
  static thread_local std::map<std::uint64_t, Entry> entries;
  return entries;
}

std::atomic<WindowOwnerHook> g_owner_hook{nullptr};

std::uint64_t NextId() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// Runs `finish` once all of `futures` are done, on the thread that completes the last one.
void WhenAll(const std::vector<c10::intrusive_ptr<Future>>& futures,
             const std::function<void()>& finish) {
  if (futures.empty()) {
    finish();
    return;
  }
  const auto left = std::make_shared<std::atomic<std::size_t>>(futures.size());
  for (const auto& future : futures) {
    future->addCallback([left, finish](Future&) {
      if (--*left == 0) finish();
    });
  }
}

}  // namespace

void SetWindowOwnerHook(WindowOwnerHook hook) { g_owner_hook.store(hook); }

CoalescingWindows::CoalescingWindows() : id_(NextId()) {}

CoalescingWindows::~CoalescingWindows() { EntriesHere().erase(id_); }

bool CoalescingWindows::Open() {
  Works forgotten;
  const bool left_open = Close(&forgotten);
  auto window = std::make_shared<CoalescingWindow>();
  if (const WindowOwnerHook hook = g_owner_hook.load()) window->abandoned_ = hook();
  EntriesHere()[id_].window = std::move(window);
  return left_open;
}

bool CoalescingWindows::CloseAbandoned() {
  const auto& entries = EntriesHere();
  if (entries.empty()) return false;
  const auto found = entries.find(id_);
  if (found == entries.end()) return false;
  const std::shared_ptr<CoalescingWindow> window = found->second.window;
  if (!window->abandoned_ || !window->abandoned_()) return false;
  Works forgotten;
  return Close(&forgotten);
}

std::shared_ptr<const CoalescingWindow> CoalescingWindows::Current() const {
  const auto& entries = EntriesHere();
  if (entries.empty()) return nullptr;
  const auto found = entries.find(id_);
  return found == entries.end() || !found->second.window->open_ ? nullptr : found->second.window;
}

void CoalescingWindows::Add(const c10::intrusive_ptr<c10d::Work>& work) {
  if (Current() != nullptr) EntriesHere()[id_].works.push_back(work);
}

void CoalescingWindows::Refuse() {
  if (Current() != nullptr) EntriesHere()[id_].window->open_ = false;
}

bool CoalescingWindows::Close(Works* works) {
  auto& entries = EntriesHere();
  const auto found = entries.find(id_);
  if (found == entries.end()) return false;
  found->second.window->open_ = false;
  *works = std::move(found->second.works);
  entries.erase(found);
  return true;
}

CoalescedWork::CoalescedWork(std::shared_ptr<Communicator> communicator, Works works,
                             std::chrono::milliseconds timeout)
    : c10d::Work(communicator->rank(), c10d::OpType::COALESCED),
      communicator_(std::move(communicator)),
      works_(std::move(works)),
      timeout_(timeout) {}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (std::exception_ptr failure = work->exception()) return failure;
  }
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> results;
  for (const auto& work : works_) {
    for (at::Tensor& tensor : work->result()) results.push_back(std::move(tensor));
  }
  return results;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  const TimePoint begun = SteadyClock().Now();
  for (const auto& work : works_) {
    if (timeout.count() <= 0) {
      work->wait();
      continue;
    }
    const auto spent =
        std::chrono::duration_cast<std::chrono::milliseconds>(SteadyClock().Now() - begun);
    // At least 1 ms: zero would mean no limit.
    work->wait(std::max(timeout - spent, std::chrono::milliseconds(1)));
  }
  return true;
}

void CoalescedWork::blockCurrentStream() {
  C10_THROW_ERROR(NotImplementedError,
                  "coalesced calls of group " + communicator_->group_name() +
                      ": a cpu has no stream that could be blocked; call wait()");
}

void CoalescedWork::abort() { communicator_->Abort("Work.abort() was called for coalesced calls"); }

c10::intrusive_ptr<Future> CoalescedWork::getFuture() {
  std::vector<c10::intrusive_ptr<Future>> futures;
  futures.reserve(works_.size());
  for (const auto& work : works_) futures.push_back(work->getFuture());
  auto all = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  WhenAll(futures, [all, futures] {
    std::vector<at::Tensor> results;
    for (const auto& future : futures) {
      if (future->hasError()) {
        all->setError(future->exception_ptr());
        return;
      }
      for (const at::Tensor& tensor : future->constValue().toTensorVector()) {
        results.push_back(tensor);
      }
    }
    all->markCompleted(c10::IValue(std::move(results)));
  });
  return all;
}

c10::intrusive_ptr<Future> CoalescedWork::getFutureResult() {
  std::vector<c10::intrusive_ptr<Future>> futures;
  futures.reserve(works_.size());
  for (const auto& work : works_) futures.push_back(work->getFutureResult());
  auto all = c10::make_intrusive<Future>(c10::IntType::get());
  WhenAll(futures, [all, futures] {
    std::int64_t worst = 0;
    for (const auto& future : futures) worst = std::max(worst, future->constValue().toInt());
    all->markCompleted(c10::IValue(worst));
  });
  return all;
}

float CoalescedWork::getDuration() const {
  C10_THROW_ERROR(NotImplementedError,
                  "coalesced calls of group " + communicator_->group_name() +
                      ": no duration is kept; see torch.profiler or tidegate.stats()");
}

std::uint64_t CoalescedWork::getSequencenumber() const {
  return works_.empty() ? communicator_->sequence() : works_.front()->getSequencenumber();
}

std::chrono::milliseconds CoalescedWork::getTimeout() const { return timeout_; }

}  // namespace tidegate
