#pragma once

#include <cstdint>

#include "common/status.h"
#include "offload/optim/layout.h"

namespace tidegate::offload {

/// What a user chose for a group of parameters, under torch's names and with torch's meaning. What
/// a rule does not use is ignored.
struct Hyperparameters {
  Rule rule = Rule::kAdamW;
  double lr = 1e-3;         ///< >= 0
  double beta1 = 0.9;       ///< In [0, 1). AdamW, Adam, Lion.
  double beta2 = 0.999;     ///< In [0, 1).
  double eps = 1e-8;        ///< >= 0. AdamW, Adam, Adagrad.
  double weight_decay = 0;  ///< >= 0. AdamW, Lion: decoupled; Adam, SGD, Adagrad: L2.
  double momentum = 0;      ///< >= 0. SGD; 0: no momentum_buffer.
  double dampening = 0;     ///< SGD.
  double lr_decay = 0;      ///< >= 0. Adagrad.
  bool amsgrad = false;     ///< AdamW, Adam.
  bool nesterov = false;    ///< SGD.
  bool maximize = false;
};

/// kInvalidArgument naming the value that is NaN or out of its range.
Status CheckHyperparameters(const Hyperparameters& hyperparameters);

/// What a step of one tensor computes with: computed in double and rounded once to float32. The
/// formulas that they stand in are those of docs/offload.md.
struct Coefficients {
  Rule rule = Rule::kAdamW;
  bool amsgrad = false;
  float gradient_factor = 1;  ///< What each gradient is multiplied with; negative to maximize.
  float l2 = 0;               ///< Times the parameter, added to the gradient; 0: nothing is.
  float keep = 1;             ///< What the parameter is multiplied with: 1 - lr * weight_decay.
  float step_size = 0;        ///< lr, over 1 - beta1^step in Adam, decayed in Adagrad.
  float beta1 = 0;
  float gradient_weight1 = 0;  ///< 1 - beta1
  /// exp_avg = lerp_base + lerp * (gradient - exp_avg): from exp_avg with 1 - beta1 where that is
  /// less than one half, else from the gradient with -beta1, as torch.lerp does.
  float lerp = 0;
  bool lerp_from_gradient = false;
  float beta2 = 0;
  float gradient_weight2 = 0;  ///< 1 - beta2
  float inverse_root = 1;      ///< 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float momentum = 0;
  float undamped = 1;  ///< 1 - dampening
  bool nesterov = false;
  bool first_step = false;  ///< SGD: the momentum buffer becomes the gradient.
  std::uint64_t seed = 0;   ///< Of stochastic rounding, of this step.
};

/// `step` counts from 1, as torch's does after its increment. `gradient_factor` is what every
/// element of the gradient is multiplied with first: 1 / scale of a GradScaler times the clip
/// factor; 1 is exact. `seed` is that of stochastic rounding: one a tensor, the same at each step.
Coefficients CoefficientsOf(const Hyperparameters& hyperparameters, std::uint64_t step,
                            double gradient_factor, std::uint64_t seed);

}  // namespace tidegate::offload
