// AdamW (Loshchilov, Hutter 2019) for all parameters of a model, with one fused call for each parameter group:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr wd w;
//   w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// Here w is a weight, g its gradient, m and v its moments, t the number of the step from 1 on, b1 and b2 the betas, and
// wd the weight decay. Weights, moments and gradients are fp32.
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
  // Optimizes the parameters that require a gradient. Weight decay applies to the parameters for which `decays(name)`
  // returns true, or to all parameters if `decays` is empty.
  AdamW(const Parameters& parameters, const AdamWOptions& options,
        const std::function<bool(const std::string&)>& decays = {});

  // Returns the global L2 norm of the gradients. A missing gradient is treated as zero.
  double gradient_norm() const;
  // Performs one update with the gradients scaled by min(1, max_norm / norm), then calls zero_grad(). max_norm 0
  // disables clipping.
  void step(double lr, double norm, double max_norm);
  void zero_grad();
  int64_t steps_taken() const { return steps_taken_; }

  // Returns the tensors exp_avg.NAME and exp_avg_sq.NAME of every parameter, and the step count.
  Parameters state() const;
  // Loads the tensors of state(). Errors name the tensor that is missing, is unexpected, or has a wrong shape or dtype.
  void load_state(const std::map<std::string, at::Tensor>& state, const std::string& file);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<at::Tensor> parameters, exp_avg, exp_avg_sq, steps;
  };
  AdamWOptions options_;
  std::vector<Group> groups_;
  at::Tensor steps_tensor_;  // step count as an fp32 scalar for the fused kernel, shared by all parameters
  int64_t steps_taken_ = 0;
};

}  // namespace lazy::train
