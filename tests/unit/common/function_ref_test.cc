#include "common/function_ref.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace tidegate {
namespace {

int Twice(FunctionRef<int(int)> function) { return function(function(1)); }

TEST(FunctionRefTest, CallsTheObjectThatItRefersTo) {
  int calls = 0;
  const auto add = [&calls](int value) {
    ++calls;
    return value + 10;
  };
  EXPECT_EQ(Twice(add), 21);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(Twice([](int value) { return value * 4; }), 16);
}

TEST(FunctionRefTest, ReachesAMutableObjectAndNotACopy) {
  struct Counter {
    int count = 0;
    int operator()(int step) { return count += step; }
  } counter;
  const FunctionRef<int(int)> function = counter;
  EXPECT_EQ(function(2), 2);
  EXPECT_EQ(function(3), 5);
  EXPECT_EQ(counter.count, 5);
}

TEST(FunctionRefTest, PassesReferencesAndWhatOnlyMoves) {
  std::string text = "a";
  const auto append = [](std::string& to, std::unique_ptr<char> what) { to += *what; };
  const FunctionRef<void(std::string&, std::unique_ptr<char>)> function = append;
  function(text, std::make_unique<char>('b'));
  EXPECT_EQ(text, "ab");
}

TEST(FunctionRefTest, IsTwoWordsAndCopiedLikeThem) {
  using Function = FunctionRef<int(int)>;
  static_assert(sizeof(Function) == 2 * sizeof(void*));
  static_assert(std::is_trivially_copyable_v<Function>);
  const auto negate = [](int value) { return -value; };
  const Function first = negate;
  const Function second = first;  // Refers to the lambda, not to `first`.
  EXPECT_EQ(second(3), -3);
}

}  // namespace
}  // namespace tidegate
