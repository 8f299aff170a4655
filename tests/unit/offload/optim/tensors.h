#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "offload/optim/coefficients.h"
#include "offload/optim/layout.h"
#include "offload/optim/update.h"

namespace tidegate::offload::testing {

/// What the values of a tensor are drawn from.
enum class Values {
  kOrdinary,  ///< Magnitudes of a training run: parameters about 1, gradients about 1e-2.
  kSpecial,   ///< One in eight a NaN, an infinity, a zero or a subnormal; the rest of any exponent.
};

/// The memory of one tensor, random, with guard bytes around each stream, which begins `offset`
/// elements after the beginning of a cache line.
class Tensors {
 public:
  Tensors(const Hyperparameters& hyperparameters, const Layout& layout, std::size_t count,
          Values values, std::size_t offset, std::uint64_t seed);

  TensorOperands operands();
  const Layout& layout() const { return layout_; }
  std::size_t count() const { return count_; }

  // As float32.
  float gradient(std::size_t index) const;
  float parameter(std::size_t index) const;
  float master(std::size_t index) const;
  float state(int state, std::size_t index) const;

  /// Empty where all bytes of the two are equal, NaNs of one type counting as equal; else the first
  /// place that differs.
  std::string Difference(const Tensors& other) const;

 private:
  static constexpr std::size_t kGuard = 64;

  /// Makes buffers begin with a cache line, as those of the arena do.
  template <typename T>
  struct LineAllocator {
    using value_type = T;  // NOLINT(readability-identifier-naming): as allocators do
    LineAllocator() = default;
    template <typename U>
    explicit LineAllocator(const LineAllocator<U>&) {}
    T* allocate(std::size_t count) {
      return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kGuard}));
    }
    void deallocate(T* memory, std::size_t) { ::operator delete(memory, std::align_val_t{kGuard}); }
    friend bool operator==(LineAllocator, LineAllocator) { return true; }
  };
  struct Stream {
    std::vector<std::byte, LineAllocator<std::byte>> bytes;
    std::size_t element_size = 0;
    std::size_t elements = 0;
    std::size_t offset = 0;
    std::byte* data() { return bytes.data() + offset; }
    const std::byte* data() const { return bytes.data() + offset; }
  };
  static void Make(Stream& stream, std::size_t elements, std::size_t element_size,
                   std::size_t offset);
  static void Set(Stream& stream, ElementType type, std::size_t index, float value);
  void SetSplit(std::size_t index, float value);
  /// Makes up the states of one block of kScaleBlock.
  void FillBlocks(std::size_t block, const std::function<float(float)>& draw);
  static float Get(const Stream& stream, ElementType type, std::size_t index);
  static std::string Compare(const std::string& name, const Stream& a, const Stream& b);
  static std::string CompareFloats(const std::string& name, const Stream& a, const Stream& b,
                                   ElementType type);
  ElementType StateType() const;

  Layout layout_;
  std::size_t count_;
  int state_count_;
  Stream gradient_;
  Stream parameter_;
  Stream master_;
  std::array<Stream, 3> states_;
  std::array<Stream, 3> scales_;
};

}  // namespace tidegate::offload::testing
