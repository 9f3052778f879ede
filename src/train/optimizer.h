// AdamW (Loshchilov, Hutter 2019) over all parameters of a model, in one fused call for each parameter group:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr wd w;  w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) +
//   eps)
// Weights, moments and gradients are fp32.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "train/config.h"

namespace lazy::train {

class AdamW {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;
  // Uses the parameters that require a gradient. Weight decay applies to those for which `decays(name)`; without
  // `decays` to all.
  AdamW(const Parameters& parameters, const AdamWOptions& options,
        const std::function<bool(const std::string&)>& decays = {});

  // Global L2 norm of the gradients. A parameter without a gradient counts as zero.
  double gradient_norm() const;
  // One update with gradients scaled by min(1, max_norm / norm), then zero_grad(). max_norm 0: no clipping.
  void step(double lr, double norm, double max_norm);
  void zero_grad();
  int64_t steps_taken() const { return steps_taken_; }

  // exp_avg.NAME, exp_avg_sq.NAME and the step count.
  Parameters state() const;
  // Loads state(). Error that names a missing or extra tensor, or one of another shape or type.
  void load_state(const std::map<std::string, at::Tensor>& state, const std::string& file);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<at::Tensor> parameters, exp_avg, exp_avg_sq, steps;
  };
  AdamWOptions options_;
  std::vector<Group> groups_;
  at::Tensor steps_tensor_;  // fp32 scalar for the fused kernel, shared by all parameters
  int64_t steps_taken_ = 0;
};

}  // namespace lazy::train
