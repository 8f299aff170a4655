#include "tests/unit/offload/optim/tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "offload/optim/block8.h"
#include "offload/optim/scalar_elements.h"
#include "offload/optim/split_master.h"

namespace tidegate::offload::testing {
namespace {

/// A NaN, an infinity, a zero or a subnormal in one draw of eight, else of any exponent below 2.
float SpecialFloat(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const auto low = static_cast<std::uint32_t>(bits);
  const std::uint32_t sign = low & 0x80000000;
  switch ((bits >> 32) % 32) {
    case 0:
      return std::bit_cast<float>(low | 0x7fc00000);
    case 1:
      return std::bit_cast<float>(sign | 0x7f800000);
    case 2:
      return std::bit_cast<float>(sign);
    case 3:
      return std::bit_cast<float>(low & 0x807fffff);
    default:
      return std::bit_cast<float>(low & 0xbfffffff);
  }
}

}  // namespace

Tensors::Tensors(const Hyperparameters& hyperparameters, const Layout& layout, std::size_t count,
                 Values values, std::size_t offset, std::uint64_t seed)
    : layout_(layout), count_(count), state_count_(StateCount(hyperparameters)) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](float scale) {
    return values == Values::kSpecial ? SpecialFloat(random) : scale * normal(random);
  };
  Make(gradient_, count, SizeOf(layout.gradient), offset);
  Make(parameter_, count, SizeOf(layout.parameter), offset);
  if (layout.master != Master::kNone) Make(master_, count, SizeOf(layout.master), offset);
  for (int i = 0; i < state_count_; ++i) {
    Make(states_[i], count, SizeOf(layout.states), offset);
    if (layout.states == States::kBlock8) Make(scales_[i], ScalesOf(count), sizeof(float), offset);
  }
  for (std::size_t i = 0; i < count; ++i) {
    Set(gradient_, layout.gradient, i, draw(1e-2f));
    const float value = draw(1);
    Set(parameter_, layout.parameter, i, value);
    if (layout.master == Master::kFloat32) Set(master_, ElementType::kFloat32, i, value);
    if (layout.master == Master::kSplit) SetSplit(i, value);
    if (layout.states == States::kBlock8) continue;
    for (int state = 0; state < state_count_; ++state) {
      const bool squares = state != 0 || hyperparameters.rule == Rule::kAdagrad;
      Set(states_[state], StateType(), i, squares ? std::abs(draw(1e-4f)) : draw(1e-2f));
    }
  }
  for (std::size_t block = 0; layout.states == States::kBlock8 && block < ScalesOf(count); ++block)
    FillBlocks(block, draw);
}

void Tensors::SetSplit(std::size_t index, float value) {
  const SplitFloat split = Split(value);
  std::memcpy(parameter_.data() + index * sizeof split.upper, &split.upper, sizeof split.upper);
  std::memcpy(master_.data() + index * sizeof split.lower, &split.lower, sizeof split.lower);
}

void Tensors::FillBlocks(std::size_t block, const std::function<float(float)>& draw) {
  const std::size_t first = block * kScaleBlock;
  const std::size_t size = std::min(kScaleBlock, count_ - first);
  for (int state = 0; state < state_count_; ++state) {
    float values[kScaleBlock];
    for (std::size_t i = 0; i < size; ++i)
      values[i] = state == 0 ? draw(1e-2f) : std::abs(draw(1e-4f));
    auto* const codes = reinterpret_cast<std::uint8_t*>(states_[state].data()) + first;
    Set(scales_[state], ElementType::kFloat32, block,
        EncodeBlock8(values, size, state == 1, codes));
  }
}

void Tensors::Make(Stream& stream, std::size_t elements, std::size_t element_size,
                   std::size_t offset) {
  stream.element_size = element_size;
  stream.elements = elements;
  stream.offset = kGuard + offset * element_size;
  stream.bytes.assign(2 * kGuard + (offset + elements) * element_size, std::byte{0xa5});
}

ElementType Tensors::StateType() const {
  return layout_.states == States::kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat32;
}

void Tensors::Set(Stream& stream, ElementType type, std::size_t index, float value) {
  switch (type) {
    case ElementType::kFloat32:
      return ScalarElement<ElementType::kFloat32>::Store(stream.data(), index, value);
    case ElementType::kBFloat16:
      return ScalarElement<ElementType::kBFloat16>::Store(stream.data(), index, value);
    case ElementType::kFloat16:
      return ScalarElement<ElementType::kFloat16>::Store(stream.data(), index, value);
  }
}

float Tensors::Get(const Stream& stream, ElementType type, std::size_t index) {
  switch (type) {
    case ElementType::kFloat32:
      return ScalarElement<ElementType::kFloat32>::Load(stream.data(), index);
    case ElementType::kBFloat16:
      return ScalarElement<ElementType::kBFloat16>::Load(stream.data(), index);
    case ElementType::kFloat16:
      return ScalarElement<ElementType::kFloat16>::Load(stream.data(), index);
  }
  return 0;
}

TensorOperands Tensors::operands() {
  TensorOperands operands;
  operands.count = count_;
  operands.gradient = gradient_.data();
  operands.parameter = parameter_.data();
  if (layout_.master != Master::kNone) operands.master = master_.data();
  for (int i = 0; i < state_count_; ++i) {
    operands.states[i] = states_[i].data();
    if (layout_.states == States::kBlock8)
      operands.scales[i] = reinterpret_cast<float*>(scales_[i].data());
  }
  return operands;
}

float Tensors::gradient(std::size_t index) const { return Get(gradient_, layout_.gradient, index); }

float Tensors::parameter(std::size_t index) const {
  return Get(parameter_, layout_.parameter, index);
}

float Tensors::master(std::size_t index) const {
  if (layout_.master == Master::kSplit) {
    SplitFloat split;
    std::memcpy(&split.upper, parameter_.data() + index * sizeof split.upper, sizeof split.upper);
    std::memcpy(&split.lower, master_.data() + index * sizeof split.lower, sizeof split.lower);
    return Joined(split);
  }
  return Get(master_, ElementType::kFloat32, index);
}

float Tensors::state(int state, std::size_t index) const {
  if (layout_.states == States::kBlock8) {
    const auto code = static_cast<std::uint8_t>(states_[state].data()[index]);
    const float scale = Get(scales_[state], ElementType::kFloat32, index / kScaleBlock);
    return state == 0 ? DecodeSigned8(code, scale) : DecodeUnsigned8(code, scale);
  }
  return Get(states_[state], StateType(), index);
}

std::string Tensors::Compare(const std::string& name, const Stream& a, const Stream& b) {
  for (std::size_t i = 0; i < a.bytes.size(); ++i)
    if (a.bytes[i] != b.bytes[i])
      return name + ": byte " + std::to_string(i) + " of the buffer, whose elements start at " +
             std::to_string(a.offset);
  return "";
}

std::string Tensors::CompareFloats(const std::string& name, const Stream& a, const Stream& b,
                                   ElementType type) {
  if (a.bytes == b.bytes) return "";
  Stream with_equal_nans = b;
  for (std::size_t i = 0; i < a.elements; ++i) {
    const float left = Get(a, type, i);
    const float right = Get(b, type, i);
    if (std::isnan(left) && std::isnan(right)) {
      std::copy_n(a.data() + i * a.element_size, a.element_size,
                  with_equal_nans.data() + i * a.element_size);
    } else if (std::bit_cast<std::uint32_t>(left) != std::bit_cast<std::uint32_t>(right)) {
      char text[100];
      std::snprintf(text, sizeof text, "[%zu]: %a and %a", i, left, right);
      return name + text;
    }
  }
  return Compare(name, a, with_equal_nans);
}

std::string Tensors::Difference(const Tensors& other) const {
  std::string found = CompareFloats("gradient", gradient_, other.gradient_, layout_.gradient);
  if (found.empty())
    found = CompareFloats("parameter", parameter_, other.parameter_, layout_.parameter);
  if (found.empty())
    found = layout_.master == Master::kFloat32
                ? CompareFloats("master", master_, other.master_, ElementType::kFloat32)
                : Compare("master", master_, other.master_);
  for (int i = 0; i < state_count_ && found.empty(); ++i) {
    const std::string name = "state " + std::to_string(i);
    found = layout_.states == States::kBlock8
                ? Compare(name, states_[i], other.states_[i])
                : CompareFloats(name, states_[i], other.states_[i], StateType());
    if (found.empty())
      found = CompareFloats(name + "'s scale", scales_[i], other.scales_[i], ElementType::kFloat32);
  }
  return found;
}

}  // namespace tidegate::offload::testing
