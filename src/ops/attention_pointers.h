// Fills the argument structs of the kernels (raw pointers) from the tensors of the operators, for CPU and GPU.
#pragma once
#include <algorithm>

#include "ops/attention_arguments.h"

namespace lazy::ops {

// Sets the inputs of a kernel. `Arguments` is kernels::Forward<Real>, kernels::Backward<Real> or kernels::Decode<Real>.
// The object owns contiguous copies of the per-head parameters, to which `arguments` points, and must outlive the
// kernel.
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

// Returns a pointer to the data of t, or null if t has no elements, which means that the caller did not request this
// output.
template <typename Real>
Real* wanted(at::Tensor& t) {
  return t.numel() ? t.mutable_data_ptr<Real>() : nullptr;
}

// Sets the output pointers of a kernels::Forward or kernels::Decode. If the head size is padded, the last dimension of
// `out` is larger than in the result of the operator.
template <typename Real, typename Arguments>
void set_outputs(Arguments& arguments, at::Tensor& out, at::Tensor& lse, at::Tensor& stats) {
  arguments.out = view(out);
  arguments.lse = wanted<Real>(lse);
  arguments.stats = wanted<Real>(stats);
  const int64_t part = stats.numel() / std::max<int64_t>(stats.size(0), 1);
  if (part > 0 && stats.size(0) == kStatsParts[2]) arguments.score_stats = arguments.stats + kStatsParts[1] * part;
}

// Sets the inputs and outputs of a backward pass. lse must be contiguous. A gradient in `g` that has no elements is not
// computed.
template <typename Real>
void set_backward(kernels::Backward<Real>& b, const at::Tensor& d_out, const at::Tensor& out, const at::Tensor& lse,
                  AttentionGradients& g) {
  b.out = const_view(out);
  b.d_out = const_view(d_out);
  b.lse = lse.const_data_ptr<Real>();
  if (g.q.numel()) b.d_q = view(g.q);
  if (g.k.numel()) b.d_k = view(g.k);
  if (g.v.numel()) b.d_v = view(g.v);
  b.d_distance_bias = wanted<Real>(g.distance_bias);
  b.d_tau = wanted<Real>(g.tau);
  b.d_sink = wanted<Real>(g.sink);
  b.d_alibi_slopes = wanted<Real>(g.alibi_slopes);
}

}  // namespace lazy::ops
