// Weights that are other than they were while this lives.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace lazy::sinks {

class WeightEdits {
 public:
  WeightEdits() = default;
  ~WeightEdits();
  WeightEdits(const WeightEdits&) = delete;
  WeightEdits& operator=(const WeightEdits&) = delete;
  // In place, so that a model sees it.
  void write(const at::Tensor& weight, const at::Tensor& value);

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;  // weight, what it was
};

}  // namespace lazy::sinks
