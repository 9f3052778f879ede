// Linear layers without bias. Several that read the same input (q, k, v; gate, up) are one product over one storage.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "model/blocks/cast_cache.h"

namespace lazy {

// y_p = x W_p^T for each part p, in one product: W (sum of out_features, in_features). The parts are separate fp32
// leaves, views of one storage: the optimizer and checkpoints see q_proj, k_proj and v_proj, the processor one matrix.
// Not thread-safe: a copy of W in the computing precision is kept until W changes.
class Linear {
 public:
  Linear() = default;
  Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device);

  const std::vector<at::Tensor>& parts() const { return parts_; }
  // x (..., in) in the computing precision -> one (..., out_features[p]) a part: columns of one tensor, so the rows of
  // several parts are strided.
  std::vector<at::Tensor> forward(const at::Tensor& x) const;

 private:
  at::Tensor packed_;              // the storage; no gradient of its own
  std::vector<at::Tensor> parts_;  // leaves
  mutable CastCache cast_;
};

}  // namespace lazy
