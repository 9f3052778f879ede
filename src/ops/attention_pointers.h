// What the CPU kernels' arguments have in common, pointed at the operators' tensors.
#pragma once
#include <ATen/ATen.h>

#include "ops/attention_arguments.h"

namespace lazy::ops {

// Arguments: Forward, Backward or Decode of Real. Alive as long as the kernel runs: it holds the contiguous copies.
template <typename Real, typename Arguments>
struct InputPointers {
  Arguments arguments;
  explicit InputPointers(const AttentionArguments& a) {
    arguments.q = const_view(a.q);
    arguments.k = const_view(a.k);
    arguments.v = const_view(a.v);
    arguments.distance_bias = parameter(a.distance_bias, keep_[0]);
    arguments.tau = parameter(a.tau, keep_[1]);
    arguments.sink = parameter(a.sink, keep_[2]);
    arguments.alibi_slopes = parameter(a.alibi_slopes, keep_[3]);
  }

 private:
  static const Real* parameter(const OptionalTensor& t, at::Tensor& keep) {
    if (!given(t)) return nullptr;
    keep = t->contiguous();
    return keep.const_data_ptr<Real>();
  }
  at::Tensor keep_[4];
};

// null for a tensor without elements: not wanted.
template <typename Real>
Real* wanted(at::Tensor& t) {
  return t.numel() ? t.mutable_data_ptr<Real>() : nullptr;
}

}  // namespace lazy::ops
