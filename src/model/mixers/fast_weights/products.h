// Batched products of tensors (..., rows, columns) whose leading axes are one batch.
#pragma once
#include <ATen/ATen.h>

namespace lazy::fast_weights {

inline at::Tensor turned(const at::Tensor& x) { return x.transpose(-1, -2); }

// The leading axes as one; x is contiguous, or the transpose of what is.
inline at::Tensor batch(const at::Tensor& x) { return x.dim() == 3 ? x : x.flatten(0, -3); }

inline at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return at::bmm(batch(a), batch(b)).view(sizes);
}

// y = beta y + alpha a b, in place.
inline void accumulate(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, double alpha = 1,
                       double beta = 1) {
  at::Tensor rows = batch(y);
  rows.baddbmm_(batch(a), batch(b), beta, alpha);
}

// sum over columns of a b -> (..., rows, 1)
inline at::Tensor row_dot(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum(-1, /*keepdim=*/true); }
// sum over rows and columns -> (..., 1, 1)
inline at::Tensor block_dot(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum(at::IntArrayRef{-2, -1}, /*keepdim=*/true);
}

// fp32 products on a GPU may round to tf32 while this lives.
class RoundedProducts {
 public:
  explicit RoundedProducts(bool rounded) : set_(rounded && !at::globalContext().allowTF32CuBLAS()) {
    if (set_) at::globalContext().setAllowTF32CuBLAS(true);
  }
  ~RoundedProducts() {
    if (set_) at::globalContext().setAllowTF32CuBLAS(false);
  }
  RoundedProducts(const RoundedProducts&) = delete;
  RoundedProducts& operator=(const RoundedProducts&) = delete;

 private:
  bool set_;
};

}  // namespace lazy::fast_weights
