// Linear layers without bias, and cached casts of weights to the compute dtype.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "model/blocks/norm.h"

namespace lazy {

// Not thread-safe. The result does not require a gradient: the caller's autograd function assigns the gradient to the
// master weight.
class CastCache {
 public:
  at::Tensor get(const at::Tensor& master, at::ScalarType dtype);
  // Allocates an uninitialized copy in `dtype`. From now on `get` returns it without comparing it with the master: the
  // caller keeps it up to date.
  at::Tensor place(const at::Tensor& master, at::ScalarType dtype);

 private:
  at::Tensor cast_;
  int64_t version_ = -1;
  bool placed_ = false;
};

// y_p = x W_p^T for each part p, as one matrix product with W (sum of out_features, in_features). The parts are
// separate fp32 leaves that are views of one storage: the optimizer and checkpoints see q_proj, k_proj and v_proj, the
// device computes one product. Not thread-safe: the cast of W to the compute dtype is cached until W changes.
class Linear {
 public:
  Linear() = default;
  // last_apart: on a GPU the last part is computed as a separate product, so that the memory of the others can be freed
  // before its own.
  Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device, bool last_apart = false);

  const std::vector<at::Tensor>& parts() const { return parts_; }
  // W in the compute dtype; does not require a gradient.
  at::Tensor matrix(at::ScalarType dtype) const { return cast_.get(packed_, dtype); }
  // The buffer of matrix(dtype), which the caller keeps up to date from now on. dtype differs from the parts' dtype.
  at::Tensor place_matrix(at::ScalarType dtype) const { return cast_.place(packed_, dtype); }
  // x (..., in) in the compute dtype -> one (..., out_features[p]) per part. The results are column views of one
  // tensor, so with several parts their rows are strided.
  std::vector<at::Tensor> forward(const NormOutput& x) const;

 private:
  at::Tensor packed_;              // the shared storage; does not require a gradient
  std::vector<at::Tensor> parts_;  // leaves
  bool last_apart_ = false;
  mutable CastCache cast_;
};

// Gradient of y = x W^T with respect to W, (out, in) in fp32, from that of y, (N, out).
at::Tensor weight_gradient(const at::Tensor& d_y, const at::Tensor& x);

}  // namespace lazy
