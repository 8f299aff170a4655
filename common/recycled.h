#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace tidegate {

/// Memory for objects of one type, made at every call and gone soon after: what is freed is kept
/// for the next one, up to kMostKept blocks a type, on whatever thread. Never waits: who finds the
/// list in use, also for ever since a fork, goes to the ordinary allocator. Under AddressSanitizer
/// nothing is kept, lest what is used after it was freed go unseen.
template <typename T>
class RecyclingAllocator {
 public:
  using value_type = T;  // NOLINT(readability-identifier-naming): as allocators do
  static constexpr std::size_t kMostKept = 64;

  RecyclingAllocator() = default;
  template <typename Other>
  RecyclingAllocator(const RecyclingAllocator<Other>& /*other*/) {}  // NOLINT: as allocators do.

  T* allocate(std::size_t count) {
    static_assert(sizeof(T) >= sizeof(Block) && alignof(T) >= alignof(Block));
    if (count == 1 && kKeeps && TryLock()) {
      Block* const block = list_.first;
      if (block != nullptr) {
        list_.first = block->next;
        --list_.size;
      }
      Unlock();
      if (block != nullptr) return reinterpret_cast<T*>(block);
    }
    return std::allocator<T>().allocate(count);
  }

  void deallocate(T* memory, std::size_t count) {
    if (count == 1 && kKeeps && TryLock()) {
      const bool kept = list_.size < kMostKept;
      if (kept) {
        list_.first = new (memory) Block{list_.first};
        ++list_.size;
      }
      Unlock();
      if (kept) return;
    }
    std::allocator<T>().deallocate(memory, count);
  }

  /// Default-initialized: an object with room for more inside is not zeroed first.
  template <typename U>
  void construct(U* object) {
    new (static_cast<void*>(object)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* object, Arguments&&... arguments) {
    std::construct_at(object, std::forward<Arguments>(arguments)...);
  }

  template <typename Other>
  bool operator==(const RecyclingAllocator<Other>& /*other*/) const {
    return true;
  }

 private:
  struct Block {
    Block* next;
  };
  struct List {
    std::atomic_flag locked;
    Block* first = nullptr;  // Guarded, as the rest.
    std::size_t size = 0;
  };

  static bool TryLock() { return !list_.locked.test_and_set(std::memory_order_acquire); }
  static void Unlock() { list_.locked.clear(std::memory_order_release); }

#if defined(__SANITIZE_ADDRESS__)
  static constexpr bool kKeeps = false;
#else
  static constexpr bool kKeeps = true;
#endif
  // Without a destructor: used until the very end. NOLINTNEXTLINE(readability-identifier-naming)
  static inline constinit List list_;
};

/// std::make_shared in such memory.
template <typename T, typename... Arguments>
std::shared_ptr<T> MakeRecycled(Arguments&&... arguments) {
  return std::allocate_shared<T>(RecyclingAllocator<T>(), std::forward<Arguments>(arguments)...);
}

}  // namespace tidegate
