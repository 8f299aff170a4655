#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tidegate::offload {

/// What an optimizer does with a gradient; the formulas are those of torch.optim and, of Lion, of
/// its paper (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2).
enum class Rule { kAdamW, kAdam, kSgd, kAdagrad, kLion };

enum class ElementType { kFloat32, kBFloat16, kFloat16 };

/// Where the value is that the optimizer updates.
enum class Master {
  kNone,     ///< In the parameter itself, computed with in float32, rounded to nearest even.
  kFloat32,  ///< In a float32 beside the parameter, which has 16 bits and is written only.
  kSplit,    ///< In a bfloat16 parameter and the 16 bits that it lacks (split_master.h).
};

/// How the states of the optimizer (exp_avg, ...) are kept between steps.
enum class States {
  kFloat32,
  kBFloat16,  ///< Squares by stochastic rounding, the rest to nearest. AdamW without amsgrad only.
  /// 8 bits, by stochastic rounding, and a float32 scale for 256 elements. AdamW without amsgrad
  /// only.
  kBlock8,
};

/// The element types of one tensor and of what belongs to it.
struct Layout {
  ElementType gradient = ElementType::kFloat32;
  ElementType parameter = ElementType::kFloat32;
  Master master = Master::kNone;
  States states = States::kFloat32;

  friend bool operator==(const Layout&, const Layout&) = default;
};

struct Hyperparameters;

/// How many state tensors a rule keeps: AdamW and Adam two (exp_avg, exp_avg_sq), with amsgrad
/// three (max_exp_avg_sq); SGD one (momentum_buffer) with momentum, else none; Adagrad (sum) and
/// Lion (exp_avg) one.
int StateCount(const Hyperparameters& hyperparameters);

/// Bytes per element.
std::size_t SizeOf(ElementType type);
/// Bytes per element of the master (0, 4 or 2) and of each state, the scales of kBlock8 left out.
std::size_t SizeOf(Master master);
std::size_t SizeOf(States states);

/// "AdamW", "float32", "split", "block8", ...
std::string_view NameOf(Rule rule);
std::string_view NameOf(ElementType type);
std::string_view NameOf(Master master);
std::string_view NameOf(States states);
/// "gradient bfloat16, parameter bfloat16, master split, states float32".
std::string Describe(const Layout& layout);

/// kUnsupported with the layout and the reason where FindUpdate() has nothing for the pair.
Status CheckSupported(const Hyperparameters& hyperparameters, const Layout& layout);

}  // namespace tidegate::offload
