#include "offload/threads/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "tests/unit/common/child_process.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsAllocations = false;
std::atomic<std::size_t> g_allocations{0};
#else
constexpr bool kCountsAllocations = true;
std::atomic<std::size_t> g_allocations{0};

// Not inlined: the compiler would miss the pairs of new and delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace tidegate::offload {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<ThreadPlace> Anywhere(int threads) {
  return std::vector<ThreadPlace>(static_cast<std::size_t>(threads));
}

/// A place on each of the first processors of the mask; fewer than `threads` where there are fewer.
std::vector<ThreadPlace> Pinned(int threads) {
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  std::vector<ThreadPlace> places;
  for (int cpu = 0; cpu < CPU_SETSIZE && static_cast<int>(places.size()) < threads; ++cpu)
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &mask)) places.push_back({.cpus = {cpu}});
  return places;
}

/// Holds whoever arrives until `count` have.
class Meeting {
 public:
  explicit Meeting(int count) : missing_(count) {}
  void Arrive() {
    missing_.fetch_sub(1);
    const TimePoint deadline = SteadyClock().Now() + seconds(60);
    while (missing_.load() > 0) {
      if (SteadyClock().Now() > deadline) throw std::runtime_error("nobody else came");
      sched_yield();
    }
  }

 private:
  std::atomic<int> missing_;
};

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryItemOnce) {
  ThreadPool pool(Anywhere(GetParam()));
  EXPECT_EQ(pool.threads(), GetParam());
  for (const std::size_t items : {0, 1, 2, 3, 4, 5, 7, 8, 9, 100, 1001}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::atomic<int>> runs(items);
      const auto body = [&](std::size_t item, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, GetParam());
        runs[item].fetch_add(1, std::memory_order_relaxed);
        return Status();
      };
      const Status status = pool.Run(items, body);
      ASSERT_TRUE(status.ok()) << status.message();
      for (const std::atomic<int>& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST_P(ThreadPoolTest, EachThreadBeginsWithItsOwnNeighbours) {
  const int threads = GetParam();
  ThreadPool pool(Anywhere(threads));
  const std::size_t each = 5;
  const std::size_t items = each * static_cast<std::size_t>(threads);
  for (int round = 0; round < 10; ++round) {
    // All are held at the first item of each, so that nobody can be helped with it.
    Meeting meeting(threads);
    std::vector<int> owners(items, -1);
    const Status status = pool.Run(items, [&](std::size_t item, int thread) {
      owners[item] = thread;
      if (item % each == 0) meeting.Arrive();
      return Status();
    });
    ASSERT_TRUE(status.ok()) << status.message();
    for (int thread = 0; thread < threads; ++thread)
      EXPECT_EQ(owners[static_cast<std::size_t>(thread) * each], thread);
  }
}

TEST_P(ThreadPoolTest, AFailureIsThatOfTheLowestItemAndStartsNoFurtherOnes) {
  const int threads = GetParam();
  ThreadPool pool(Anywhere(threads));
  const std::size_t each = 1000;
  Meeting meeting(threads);
  std::atomic<std::size_t> runs{0};
  const Status status =
      pool.Run(each * static_cast<std::size_t>(threads), [&](std::size_t item, int) {
        runs.fetch_add(1);
        if (item % each != 0) return Status();
        meeting.Arrive();  // All threads fail, in any order.
        return Status(StatusCode::kResourceExhausted, "item " + std::to_string(item));
      });
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "item 0");
  EXPECT_EQ(runs.load(), static_cast<std::size_t>(threads));
  // The next job knows nothing of it.
  EXPECT_TRUE(pool.Run(100, [](std::size_t, int) { return Status(); }).ok());
  EXPECT_EQ(pool.Run(100,
                     [](std::size_t item, int) {
                       return item == 99 ? Status(StatusCode::kTimeout, "late") : Status();
                     })
                .code(),
            StatusCode::kTimeout);
}

TEST_P(ThreadPoolTest, ExceptionsBecomeStatuses) {
  ThreadPool pool(Anywhere(GetParam()));
  const Status thrown = pool.Run(
      9, [](std::size_t item, int) -> Status { throw std::out_of_range(std::to_string(item)); });
  EXPECT_EQ(thrown.code(), StatusCode::kInternal);
  EXPECT_THAT(thrown.message(), AllOf(HasSubstr("item "), HasSubstr("threw")));
  EXPECT_EQ(pool.Run(9, [](std::size_t, int) -> Status { throw std::bad_alloc(); }).code(),
            StatusCode::kResourceExhausted);
  // NOLINTNEXTLINE(bugprone-std-exception-baseclass): such are caught, too
  EXPECT_EQ(pool.Run(9, [](std::size_t, int) -> Status { throw 3; }).code(), StatusCode::kInternal);
}

TEST_P(ThreadPoolTest, AJobWithinAJobIsRefused) {
  ThreadPool pool(Anywhere(GetParam()));
  ThreadPool other(Anywhere(2));
  for (ThreadPool* const inner : {&pool, &other}) {
    const Status status = pool.Run(8, [&](std::size_t, int) {
      return inner->Run(1, [](std::size_t, int) { return Status(); });
    });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("from within a job"));
  }
  EXPECT_TRUE(pool.Run(8, [](std::size_t, int) { return Status(); }).ok());
}

TEST_P(ThreadPoolTest, CallersTakeTurns) {
  ThreadPool pool(Anywhere(GetParam()));
  std::atomic<int> jobs{0};
  std::atomic<int> wrong{0};
  std::atomic<std::size_t> runs{0};
  const auto call = [&] {
    for (int round = 0; round < 200; ++round) {
      std::atomic<int> at_it{0};  // Of this job alone.
      const Status status = pool.Run(16, [&](std::size_t, int) {
        if (at_it.fetch_add(1) == 0 && jobs.fetch_add(1) != 0) wrong.fetch_add(1);
        runs.fetch_add(1);
        if (at_it.load() == 16) jobs.store(0);
        return Status();
      });
      if (!status.ok()) wrong.fetch_add(1);
    }
  };
  std::thread first(call);
  std::thread second(call);
  call();
  first.join();
  second.join();
  EXPECT_EQ(runs.load(), 3U * 200 * 16);
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(ThreadPoolTest, ManyShortJobsLoseNothing) {
  ThreadPool pool(Anywhere(GetParam()));
  std::vector<std::size_t> results(64);
  std::size_t expected = 0;
  for (std::size_t round = 1; round <= 5000; ++round) {
    const std::size_t items = round % results.size();
    std::fill(results.begin(), results.end(), 0);
    // Plain memory on both sides: a sanitizer sees whether jobs are ordered.
    const std::size_t factor = round;
    ASSERT_TRUE(pool.Run(items,
                         [&](std::size_t item, int) {
                           results[item] = factor * item;
                           return Status();
                         })
                    .ok());
    for (std::size_t item = 0; item < items; ++item) expected += results[item] != factor * item;
  }
  EXPECT_EQ(expected, 0U);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 5, 8));

TEST(ThreadPoolHelpTest, WhoIsDoneTakesTheRestOfTheSlow) {
  ThreadPool pool(Anywhere(2));
  Meeting both(2);
  std::atomic<int> done{0};
  std::vector<int> threads(10, -1);
  const Status status = pool.Run(10, [&](std::size_t item, int thread) {
    threads[item] = thread;
    if (item == 0 || item == 5) both.Arrive();
    if (item == 0) {
      const TimePoint deadline = SteadyClock().Now() + seconds(60);
      while (done.load() < 9 && SteadyClock().Now() < deadline) sched_yield();
    } else {
      done.fetch_add(1);
    }
    return Status();
  });
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(done.load(), 9);
  for (std::size_t item = 1; item < 10; ++item) EXPECT_NE(threads[item], threads[0]) << item;
}

TEST(ThreadPoolHelpTest, HelpsItsOwnNumaNodeFirst) {
  // Threads 0 and 2 are of one node. Each but thread 2 has two items and is held at the first.
  ThreadPool pool({{.cpus = {}, .numa = 0},
                   {.cpus = {}, .numa = 1},
                   {.cpus = {}, .numa = 0},
                   {.cpus = {}, .numa = 1}});
  Meeting all(4);
  std::atomic<int> next{0};
  std::vector<int> order(8, -1);
  const Status status = pool.Run(8, [&](std::size_t item, int) {
    if (item % 2 == 0) all.Arrive();
    if (item % 2 == 1 || item == 4) {
      order[item] = next.fetch_add(1);
      return Status();
    }
    const TimePoint deadline = SteadyClock().Now() + seconds(60);
    while (next.load() < 5 && SteadyClock().Now() < deadline) sched_yield();
    return Status();
  });
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(next.load(), 5);
  EXPECT_LT(order[1], order[3]);
  EXPECT_LT(order[1], order[7]);
}

TEST(ThreadPoolLifeTest, PoolsComeAndGo) {
  {
    const ThreadPool unused(Anywhere(4));
  }
  for (int round = 0; round < 50; ++round) {
    ThreadPool first(Anywhere(2));
    ThreadPool second(Anywhere(3));
    std::atomic<int> runs{0};
    const auto count = [&](std::size_t, int) {
      runs.fetch_add(1);
      return Status();
    };
    ASSERT_TRUE(first.Start().ok());
    ASSERT_TRUE(second.Run(10, count).ok());
    ASSERT_TRUE(first.Run(10, count).ok());
    EXPECT_EQ(runs.load(), 20);
  }
}

TEST(ThreadPoolLifeTest, AThreadThatEndsInABodyIsReportedForGood) {
  ThreadPool pool(Anywhere(2));
  const auto end = [](std::size_t, int thread) {
    if (thread == 1) pthread_exit(nullptr);
    sched_yield();
    return Status();
  };
  const TimePoint start = SteadyClock().Now();
  Meeting both(2);
  const Status status = pool.Run(2, [&](std::size_t item, int thread) {
    both.Arrive();
    return end(item, thread);
  });
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("thread 1 of the offload pool has ended"));
  EXPECT_LT(SteadyClock().Now() - start, seconds(1));
  EXPECT_EQ(pool.Run(2, end).message(), status.message());
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // They have to see threads end.
TEST(ThreadPoolLifeTest, AThreadThatVanishesIsReported) {
  ThreadPool pool(Anywhere(3));
  Meeting all(3);
  const TimePoint start = SteadyClock().Now();
  const Status status = pool.Run(3, [&](std::size_t, int thread) {
    all.Arrive();
    if (thread == 2) syscall(SYS_exit, 0);
    return Status();
  });
  EXPECT_THAT(status.message(), HasSubstr("thread 2 of the offload pool has ended"));
  EXPECT_LT(SteadyClock().Now() - start, seconds(1));
}
#endif

// ThreadSanitizer follows no threads that are made after a fork.
#if !defined(__SANITIZE_THREAD__)
TEST(ThreadPoolLifeTest, ForkedChildrenMakeThreadsOfTheirOwn) {
  ThreadPool pool(Anywhere(3));
  const auto count = [&pool] {
    std::atomic<int> runs{0};
    Meeting all(3);
    const Status status = pool.Run(3, [&](std::size_t, int) {
      all.Arrive();
      runs.fetch_add(1);
      return Status();
    });
    return status.ok() ? runs.load() : -1;
  };
  ASSERT_EQ(count(), 3);
  ChildProcess child([&] {
    if (count() != 3) return 1;
    ChildProcess grandchild([&] { return count() == 3 ? 0 : 1; });
    return grandchild.Wait();
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(count(), 3);
}

TEST(ThreadPoolLifeTest, AChildMayBeForkedInTheMiddleOfAJobOfAnotherThread) {
  auto pool = std::make_unique<ThreadPool>(Anywhere(2));
  std::atomic<bool> began{false};
  std::atomic<bool> may_end{false};
  std::thread caller([&] {
    EXPECT_TRUE(pool->Run(2,
                          [&](std::size_t, int) {
                            began.store(true);
                            while (!may_end.load()) sched_yield();
                            return Status();
                          })
                    .ok());
  });
  while (!began.load()) sched_yield();
  ChildProcess child([&] {
    std::atomic<int> runs{0};
    const Status status = pool->Run(7, [&](std::size_t, int) {
      runs.fetch_add(1);
      return Status();
    });
    pool.reset();
    return status.ok() && runs.load() == 7 ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
  may_end.store(true);
  caller.join();
}
#endif

TEST(ThreadPoolLifeTest, TooManyItemsAreRefused) {
  ThreadPool pool(Anywhere(1));
  const Status status = pool.Run(std::size_t{1} << 32, [](std::size_t, int) { return Status(); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("4294967296"));
}

TEST(ThreadPoolLifeTest, AllocatesNothingOnceThereAreThreads) {
  if (!kCountsAllocations) GTEST_SKIP() << "a sanitizer's allocator";
  ThreadPool pool(Anywhere(3));
  std::atomic<int> runs{0};
  const auto count = [&](std::size_t, int) {
    runs.fetch_add(1, std::memory_order_relaxed);
    return Status();
  };
  ASSERT_TRUE(pool.Run(100, count).ok());
  const std::size_t before = g_allocations.load();
  for (int round = 0; round < 100; ++round) static_cast<void>(pool.Run(100, count));
  EXPECT_EQ(g_allocations.load(), before);
  EXPECT_EQ(runs.load(), 101 * 100);
}

cpu_set_t MaskHere() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  return mask;
}

/// Binds the calling thread to one processor.
void BindTo(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpu), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
}

/// The processors on which the threads of a pool are when all are at work.
std::set<int> CpusAtWork(ThreadPool& pool) {
  Meeting all(pool.threads());
  std::vector<int> cpus(static_cast<std::size_t>(pool.threads()), -1);
  EXPECT_TRUE(pool.Run(cpus.size(),
                       [&](std::size_t, int thread) {
                         cpus[static_cast<std::size_t>(thread)] = sched_getcpu();
                         all.Arrive();
                         return Status();
                       })
                  .ok());
  return {cpus.begin(), cpus.end()};
}

TEST(ThreadPoolPlaceTest, PinnedThreadsHaveAProcessorEachWhereverTheCallerComesFrom) {
  const std::vector<ThreadPlace> places = Pinned(4);
  if (places.size() < 2) GTEST_SKIP() << "one processor";
  std::set<int> expected;
  for (const ThreadPlace& place : places) expected.insert(place.cpus[0]);
  std::thread caller([&] {
    ThreadPool pool(places);
    const cpu_set_t before = MaskHere();
    for (const ThreadPlace& start : places) {
      BindTo(start.cpus[0]);  // May not leave it, so another thread has to.
      EXPECT_EQ(CpusAtWork(pool), expected);
      EXPECT_EQ(sched_getcpu(), start.cpus[0]);
      EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
      EXPECT_EQ(CpusAtWork(pool), expected);
      const cpu_set_t after = MaskHere();
      EXPECT_TRUE(CPU_EQUAL(&before, &after));
    }
  });
  caller.join();
}

TEST(ThreadPoolPlaceTest, ACallerFromAnotherNumaNodeGoesToItsPlace) {
  std::vector<ThreadPlace> places = Pinned(2);
  if (places.size() < 2) GTEST_SKIP() << "one processor";
  places[1].numa = 1;
  std::thread caller([&] {
    ThreadPool pool(places);
    const cpu_set_t before = MaskHere();
    BindTo(places[1].cpus[0]);
    EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
    EXPECT_TRUE(pool.Run(2,
                         [&](std::size_t, int thread) {
                           if (thread == 1) {
                             EXPECT_EQ(sched_getcpu(), places[1].cpus[0]);
                           }
                           return Status();
                         })
                    .ok());
    const cpu_set_t after = MaskHere();
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
    BindTo(places[1].cpus[0]);  // Now it may not.
    EXPECT_TRUE(pool.Run(100, [](std::size_t, int) { return Status(); }).ok());
    EXPECT_EQ(sched_getcpu(), places[1].cpus[0]);
  });
  caller.join();
}

TEST(ThreadPoolPlaceTest, AProcessorThatIsNotThereLeavesTheThreadUnpinned) {
  ThreadPool pool({{.cpus = {}}, {.cpus = {1023}}, {.cpus = {5000}}});
  std::atomic<int> runs{0};
  Meeting all(3);
  EXPECT_TRUE(pool.Run(3,
                       [&](std::size_t, int) {
                         all.Arrive();
                         runs.fetch_add(1);
                         return Status();
                       })
                  .ok());
  EXPECT_EQ(runs.load(), 3);
}

}  // namespace
}  // namespace tidegate::offload
