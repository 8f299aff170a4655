#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace tidegate {

template <typename Signature>
class FunctionRef;

/// A callable that somebody else owns, as std::string_view is to text: two words, no allocation.
/// For parameters that are called before the function they were given to returns; a stored one
/// dangles as soon as its callable goes.
template <typename Result, typename... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <typename Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef> &&
             !std::is_function_v<std::remove_reference_t<Callable>> &&
             std::is_invocable_r_v<Result, Callable&, Arguments...>)
  FunctionRef(Callable&& callable)  // NOLINT: implicit by intent
      : object_(const_cast<void*>(static_cast<const volatile void*>(std::addressof(callable)))),
        call_([](void* object, Arguments... arguments) -> Result {
          return std::invoke(*static_cast<std::remove_reference_t<Callable>*>(object),
                             std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const {
    return call_(object_, std::forward<Arguments>(arguments)...);
  }

 private:
  void* object_;
  Result (*call_)(void* object, Arguments... arguments);
};

}  // namespace tidegate
