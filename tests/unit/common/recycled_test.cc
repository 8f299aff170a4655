#include "common/recycled.h"

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tidegate {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

struct Numbered {
  explicit Numbered(int the_number) : number(the_number) {}
  int number;
};

TEST(RecycledTest, TheNextObjectLiesWhereOneWas) {
  if (!kKeeps) GTEST_SKIP() << "AddressSanitizer wants every block to be a new one";
  struct Own {
    int number = 0;
  };
  auto first = MakeRecycled<Own>();
  const auto where = reinterpret_cast<std::uintptr_t>(first.get());
  first.reset();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(MakeRecycled<Own>().get()), where);
}

TEST(RecycledTest, ObjectsAreMadeAnew) {
  for (int i = 0; i < 3; ++i) {
    const auto object = MakeRecycled<Numbered>(i);
    EXPECT_EQ(object->number, i);
  }
}

TEST(RecycledTest, ManyThreadsGetBlocksOfTheirOwn) {
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int round = 0; round < 200; ++round) {
        std::vector<std::shared_ptr<Numbered>> objects;
        for (int i = 0; i < 40; ++i) objects.push_back(MakeRecycled<Numbered>(thread * 1000 + i));
        for (int i = 0; i < 40; ++i)
          EXPECT_EQ(objects[static_cast<std::size_t>(i)]->number, thread * 1000 + i);
      }
    });
  }
}

}  // namespace
}  // namespace tidegate
