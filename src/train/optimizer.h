// AdamW (Loshchilov, Hutter 2019) over all parameters of a model, in a handful of fused calls:
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
  // Takes those that require a gradient; weight decay of the names that `decays` says, of all without it.
  AdamW(const Parameters& parameters, const AdamWOptions& options,
        const std::function<bool(const std::string&)>& decays = {});

  // Euclidean norm of all gradients together. A parameter that got no gradient counts as zero.
  double gradient_norm() const;
  // One update with gradients scaled by min(1, max_norm / norm); max_norm 0 does not clip. Then the gradients are
  // dropped.
  void step(double lr, double norm, double max_norm);
  void drop_gradients();
  int64_t steps_taken() const { return steps_taken_; }

  // exp_avg.NAME, exp_avg_sq.NAME and the step count.
  Parameters state() const;
  // The reverse. Error naming the tensor: missing, extra, or of another shape or type.
  void load_state(const std::map<std::string, at::Tensor>& state, const std::string& file);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<at::Tensor> parameters, exp_avg, exp_avg_sq, steps;
  };
  AdamWOptions options_;
  std::vector<Group> groups_;
  at::Tensor steps_tensor_;  // fp32 scalar that the fused kernel reads, shared by all parameters
  int64_t steps_taken_ = 0;
};

}  // namespace lazy::train
