#include "offload/optim/coefficients.h"

#include <cmath>
#include <limits>
#include <string>

#include "offload/optim/random_bits.h"

namespace tidegate::offload {
namespace {

Status CheckRange(const char* name, double value, double low, double below) {
  if (value >= low && value < below) return Status();  // A NaN is in no range.
  return Status(StatusCode::kInvalidArgument,
                std::string("invalid ") + name + ": " + std::to_string(value));
}

}  // namespace

Status CheckHyperparameters(const Hyperparameters& hyperparameters) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Hyperparameters& h = hyperparameters;
  TIDEGATE_RETURN_IF_ERROR(CheckRange("lr", h.lr, 0, kInfinity));
  TIDEGATE_RETURN_IF_ERROR(CheckRange("beta1", h.beta1, 0, 1));
  TIDEGATE_RETURN_IF_ERROR(CheckRange("beta2", h.beta2, 0, 1));
  TIDEGATE_RETURN_IF_ERROR(CheckRange("eps", h.eps, 0, kInfinity));
  TIDEGATE_RETURN_IF_ERROR(CheckRange("weight_decay", h.weight_decay, 0, kInfinity));
  TIDEGATE_RETURN_IF_ERROR(CheckRange("momentum", h.momentum, 0, kInfinity));
  TIDEGATE_RETURN_IF_ERROR(CheckRange("dampening", h.dampening, -kInfinity, kInfinity));
  TIDEGATE_RETURN_IF_ERROR(CheckRange("lr_decay", h.lr_decay, 0, kInfinity));
  return Status();
}

Coefficients CoefficientsOf(const Hyperparameters& hyperparameters, std::uint64_t step,
                            double gradient_factor, std::uint64_t seed) {
  const Hyperparameters& h = hyperparameters;
  const auto steps = static_cast<double>(step);
  const auto decoupled = static_cast<float>(1 - h.lr * h.weight_decay);
  const auto coupled = static_cast<float>(h.weight_decay);
  Coefficients c;
  c.rule = h.rule;
  c.gradient_factor = static_cast<float>(h.maximize ? -gradient_factor : gradient_factor);
  c.step_size = static_cast<float>(h.lr);
  c.beta1 = static_cast<float>(h.beta1);
  c.gradient_weight1 = static_cast<float>(1 - h.beta1);
  c.beta2 = static_cast<float>(h.beta2);
  c.gradient_weight2 = static_cast<float>(1 - h.beta2);
  c.eps = static_cast<float>(h.eps);
  switch (h.rule) {
    case Rule::kAdamW:
    case Rule::kAdam:
      if (h.rule == Rule::kAdamW)
        c.keep = decoupled;
      else
        c.l2 = coupled;
      c.amsgrad = h.amsgrad;
      c.lerp_from_gradient = c.gradient_weight1 >= 0.5f;
      c.lerp = c.lerp_from_gradient ? c.gradient_weight1 - 1 : c.gradient_weight1;
      c.step_size = static_cast<float>(h.lr / (1 - std::pow(h.beta1, steps)));
      c.inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, steps)));
      break;
    case Rule::kSgd:
      c.l2 = coupled;
      c.momentum = static_cast<float>(h.momentum);
      c.undamped = static_cast<float>(1 - h.dampening);
      c.nesterov = h.nesterov;
      c.first_step = step == 1;
      break;
    case Rule::kAdagrad:
      c.l2 = coupled;
      c.step_size = static_cast<float>(h.lr / (1 + (steps - 1) * h.lr_decay));
      break;
    case Rule::kLion:
      c.keep = decoupled;
      break;
  }
  c.seed = Mixed(seed + step * 0x9e3779b97f4a7c15);  // Steps and tensors are unrelated.
  return c;
}

}  // namespace tidegate::offload
