// Linear layers without bias, and the copies of weights in the compute precision.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "model/blocks/norm.h"

namespace lazy {

// Not thread-safe. The result carries no gradient: whoever computes with it gives the gradient to the master.
class CastCache {
 public:
  at::Tensor get(const at::Tensor& master, at::ScalarType dtype);
  // Memory for the copy in `dtype`, of no content yet. From here on `get` gives it whatever becomes of the master: the
  // caller keeps it up to date.
  at::Tensor place(const at::Tensor& master, at::ScalarType dtype);

 private:
  at::Tensor cast_;
  int64_t version_ = -1;
  bool placed_ = false;
};

// y_p = x W_p^T for each part p, in one product: W (sum of out_features, in_features). The parts are separate fp32
// leaves, views of one storage: the optimizer and checkpoints see q_proj, k_proj and v_proj, the processor one matrix.
// Not thread-safe: a copy of W in the computing precision is kept until W changes.
class Linear {
 public:
  Linear() = default;
  // last_apart: on a GPU the last part is a product of its own, so that the others' memory can be given back without
  // it.
  Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device, bool last_apart = false);

  const std::vector<at::Tensor>& parts() const { return parts_; }
  // W in the computing precision; no gradient.
  at::Tensor matrix(at::ScalarType dtype) const { return cast_.get(packed_, dtype); }
  // The memory of matrix(dtype), for a caller who keeps it up to date from here on (dtype is not the parts' own).
  at::Tensor place_matrix(at::ScalarType dtype) const { return cast_.place(packed_, dtype); }
  // x (..., in) in the computing precision -> one (..., out_features[p]) a part: columns of one tensor, so the rows of
  // several parts are strided.
  std::vector<at::Tensor> forward(const NormOutput& x) const;

 private:
  at::Tensor packed_;              // the storage; no gradient of its own
  std::vector<at::Tensor> parts_;  // leaves
  bool last_apart_ = false;
  mutable CastCache cast_;
};

// Gradients of the products y_p = x W_p^T from those of y_p, (N, out_features[p]), undefined where nothing came back:
// of x, and of each part in fp32.
struct ProductGradients {
  at::Tensor x;
  std::vector<at::Tensor> parts;
};
ProductGradients product_gradients(const at::Tensor& x, const at::Tensor& W, const std::vector<int64_t>& rows,
                                   const std::vector<at::Tensor>& d_y, bool want_x,
                                   const std::vector<bool>& want_parts);

}  // namespace lazy
