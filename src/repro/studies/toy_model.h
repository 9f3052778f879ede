// The toy transformer (SPEC section 6.2): one causal head, no positions, no MLP, no norm, and by default no residual.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lazy::repro {

struct ToyShape {
  int64_t tokens = 101, width = 2;
  bool residual = false, tied = true;
};

class ToyModel {
 public:
  ToyModel(const ToyShape& shape, uint64_t seed);  // every matrix N(0, 0.02)

  // ids (batch, length) -> weights (batch, length, length), logits (batch, length, tokens):
  // logits_t = (sum_j alpha_tj E_{x_j} W_V W_O [+ E_{x_t}]) E^T
  struct Output {
    at::Tensor weights, logits;
  };
  Output forward(const at::Tensor& ids) const;

  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  const at::Tensor& embedding() const { return parameters_[0].second; }

 private:
  ToyShape shape_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

}  // namespace lazy::repro
