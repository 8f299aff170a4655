#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace tidegate {

/// What of std::vector the path of a call needs, with room inside for `kInside` elements: up to
/// there it allocates nothing, and moving it moves them. Elements must be movable without throwing.
template <typename T, std::size_t kInside>
class InlineVector {
  static_assert(kInside > 0 && std::is_nothrow_move_constructible_v<T>);

 public:
  using value_type = T;  // NOLINT(readability-identifier-naming): as containers do

  InlineVector() = default;
  InlineVector(std::initializer_list<T> elements) { Append(elements); }
  InlineVector(const InlineVector& other) { Append(other); }
  InlineVector(InlineVector&& other) noexcept { Take(other); }
  InlineVector& operator=(const InlineVector& other) {
    if (this == &other) return *this;
    clear();
    Append(other);
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this == &other) return *this;
    Release();
    Take(other);
    return *this;
  }
  ~InlineVector() { Release(); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T& front() { return data_[0]; }
  const T& front() const { return data_[0]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }

  /// At least so many; again and again for a little more costs no more than pushing back.
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) MoveTo(std::max(capacity, 2 * capacity_));
  }
  /// Not from an element of this very vector, which may move meanwhile. Without arguments the
  /// element is default-initialized: not zeroed first, as is most of what has such vectors inside.
  template <typename... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    if (size_ == capacity_) MoveTo(2 * capacity_);
    if constexpr (sizeof...(Arguments) == 0) {
      new (static_cast<void*>(data_ + size_)) T;
    } else {
      std::construct_at(data_ + size_, std::forward<Arguments>(arguments)...);
    }
    return data_[size_++];
  }
  void push_back(T element) { emplace_back(std::move(element)); }
  /// Keeps what it has allocated.
  void clear() {
    std::destroy_n(data_, size_);
    size_ = 0;
  }

 private:
  template <typename Elements>
  void Append(const Elements& elements) {
    reserve(elements.size());
    std::uninitialized_copy(elements.begin(), elements.end(), data_ + size_);
    size_ += elements.size();
  }

  T* Inside() { return reinterpret_cast<T*>(inside_); }
  bool OnHeap() { return data_ != Inside(); }

  void MoveTo(std::size_t capacity) {
    T* const data = std::allocator<T>().allocate(capacity);
    std::uninitialized_move_n(data_, size_, data);
    const std::size_t size = size_;
    Release();
    data_ = data;
    size_ = size;
    capacity_ = capacity;
  }

  /// REQUIRES: nothing is held. Leaves `other` empty.
  void Take(InlineVector& other) {
    if (other.OnHeap()) {
      data_ = std::exchange(other.data_, other.Inside());
      capacity_ = std::exchange(other.capacity_, kInside);
      size_ = std::exchange(other.size_, 0);
      return;
    }
    std::uninitialized_move_n(other.data_, other.size_, data_);
    size_ = other.size_;
    other.clear();
  }

  void Release() {
    clear();
    if (!OnHeap()) return;
    std::allocator<T>().deallocate(data_, capacity_);
    data_ = Inside();
    capacity_ = kInside;
  }

  alignas(T) std::byte inside_[kInside * sizeof(T)];
  T* data_ = Inside();
  std::size_t size_ = 0;
  std::size_t capacity_ = kInside;
};

}  // namespace tidegate
