// Rotary positions (Su et al. 2021): dimension k of a head is paired with k + head_dim / 2 ("rotate-half") and the pair
// is turned by position * base^(-2k / head_dim).
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

namespace lazy {

// cos and sin of every angle, fp32, computed as the checkpoints' own code does (frequencies and angles in fp32).
// Grows on demand; not thread-safe.
class RotaryTable {
 public:
  RotaryTable(int64_t head_dim, double base) : head_dim_(head_dim), base_(base) {}
  // (length, head_dim / 2) each, for positions start .. start + length - 1.
  std::pair<at::Tensor, at::Tensor> rows(int64_t start, int64_t length, at::Device device);

 private:
  int64_t head_dim_;
  double base_;
  at::Tensor cos_, sin_;
};

// x (batch, length, heads, head_dim); cos, sin (length, head_dim / 2). Rotates in fp32, returns x's precision.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace lazy
