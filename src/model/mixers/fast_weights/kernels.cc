// Computes the forward and the backward pass of fast weights with the fused kernels of ops/cuda/fast_weights.h.
#include "model/mixers/fast_weights/kernels.h"

#include <c10/core/DeviceGuard.h>

namespace lazy::fast_weights {

namespace {

constexpr int64_t kDim = 64;

// The arguments of a kernel, together with the tensors that own the memory to which the arguments point.
class FastWeightsCall {
 public:
  FastWeightsCall(const FastWeights& in, const TensorSpec& spec, const SavedActivations& c) {
    p.C = in.q.size(0), p.N = in.q.size(1), p.T = in.q.size(2);
    p.H = spec.layers == 2 ? in.W[0].size(-1) : 0;
    p.momentum = spec.momentum, p.tanh = spec.tanh;
    p.q = read(in.q), p.k = read(in.k), p.target = read(in.target);
    p.norm_weight = read(in.norm_weight), p.norm_bias = read(in.norm_bias);
    p.read_steps = read(in.read_steps), p.read_keep = read(in.read_keep), p.read_carry = read(in.read_carry);
    p.steps = read(in.steps), p.momentum_steps = read(in.momentum_steps);
    p.keep = read(in.keep), p.carry = read(in.carry), p.momentum_keep = read(in.momentum_keep);
    p.overlap = write(c.overlap), p.kept = c.kept.defined() ? c.kept.mutable_data_ptr() : nullptr;
    for (size_t n = 0; n < spec.layers; ++n) {
      ops::FastWeightsLayer& to = layer(spec, n);
      to.W = write(c.W[n]), to.g = write(c.g[n]), to.z = write(c.z[n]);
      to.W_start = read(in.W[n]);
      if (spec.momentum) to.S_start = read(in.S[n]);
      (spec.momentum ? to.S : to.b) = write(spec.momentum ? c.S[n] : c.b[n]);
    }
    if (spec.layers == 2) p.u = write(c.u[1]), p.t = write(c.t[0]), p.x = write(c.x[0]);
  }

  ops::FastWeightsLayer& layer(const TensorSpec& spec, size_t n) { return n + 1 == spec.layers ? p.last : p.first; }
  // Returns a pointer to the data of t, or to a copy if t is not contiguous or not aligned to 16 bytes. The kernels
  // load with cp.async, which requires this alignment; a view inside a larger tensor may not have it.
  const float* read(const at::Tensor& t) {
    if (!t.defined()) return nullptr;
    kept_.push_back(t.contiguous());
    if (reinterpret_cast<uintptr_t>(kept_.back().const_data_ptr()) % 16 != 0) kept_.back() = kept_.back().clone();
    return kept_.back().const_data_ptr<float>();
  }
  static float* write(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; }
  // Allocates a contiguous tensor of the same shape as `like` and returns its pointer.
  static float* make(at::Tensor& t, const at::Tensor& like) {
    if (!like.defined()) return nullptr;
    t = at::empty(like.sizes(), like.options());
    return write(t);
  }

  ops::FastWeightsProblem p{};

 private:
  std::vector<at::Tensor> kept_;
};

}  // namespace

const ops::FastWeightsKernels* kernels_for(const FastWeights& in, const TensorSpec& spec) {
  if (!spec.rounded || spec.layers > 2 || spec.bias == spec.momentum || in.q.numel() == 0) return nullptr;
  const auto sizes = [&](size_t n, int64_t from, int64_t to) {
    return in.W[n].size(-2) == from && in.W[n].size(-1) == to && in.W[n].scalar_type() == at::kFloat;
  };
  const int64_t H = spec.layers == 2 ? in.W[0].size(-1) : 0;
  const bool fit = in.q.size(-1) == kDim && in.q.scalar_type() == at::kFloat &&
                   (H == 0 ? sizes(0, kDim, kDim) : sizes(0, kDim, H) && sizes(1, H, kDim));
  return fit ? ops::fast_weights_kernels(in.q.device().type(), in.q.size(2), H, spec.momentum) : nullptr;
}

int64_t bytes_kept(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec) {
  return kernels.kept_bytes(
      {.T = in.q.size(2), .H = spec.layers == 2 ? in.W[0].size(-1) : 0, .momentum = spec.momentum, .tanh = spec.tanh});
}

FastWeightsResult run_forward(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec,
                              SavedActivations& c, bool for_backward) {
  const c10::DeviceGuard guard(in.q.device());
  c.overlap = at::empty_like(in.read_steps, at::MemoryFormat::Contiguous);
  if (spec.layers == 2 && c.z[0].defined()) c.x[0] = at::empty_like(c.z[0]);
  FastWeightsResult after;
  FastWeightsCall call(in, spec, c);
  call.p.out = call.make(after.out, in.q);
  call.p.for_backward = for_backward;
  if (spec.last_state) {
    after.W.resize(spec.layers), after.b.resize(c.b.size()), after.S.resize(c.S.size());
    for (size_t n = 0; n < spec.layers; ++n) {
      ops::FastWeightsLayer& to = call.layer(spec, n);
      to.W_end = call.make(after.W[n], in.W[n]);
      if (spec.momentum)
        to.S_end = call.make(after.S[n], in.S[n]);
      else
        to.b_end = call.make(after.b[n], in.b[n]);
    }
  }
  kernels.forward(call.p);
  return after;
}

FastWeights run_backward(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec,
                         const SavedActivations& c, const FastWeightsResult& d) {
  const c10::DeviceGuard guard(in.q.device());
  FastWeightsCall call(in, spec, c);
  ops::FastWeightsProblem& p = call.p;
  FastWeights by;
  p.d_out = call.read(d.out);
  p.d_q = call.make(by.q, in.q), p.d_k = call.make(by.k, in.k), p.d_target = call.make(by.target, in.target);
  p.d_norm_weight = call.make(by.norm_weight, in.norm_weight), p.d_norm_bias = call.make(by.norm_bias, in.norm_bias);
  p.d_read_steps = call.make(by.read_steps, in.read_steps);
  p.d_read_keep = call.make(by.read_keep, in.read_keep), p.d_read_carry = call.make(by.read_carry, in.read_carry);
  p.d_steps = call.make(by.steps, in.steps);
  p.d_momentum_steps = call.make(by.momentum_steps, in.momentum_steps);
  p.d_keep = call.make(by.keep, in.keep), p.d_carry = call.make(by.carry, in.carry);
  p.d_momentum_keep = call.make(by.momentum_keep, in.momentum_keep);
  for (size_t n = 0; n < spec.layers; ++n) {
    ops::FastWeightsLayer& to = call.layer(spec, n);
    by.W.emplace_back(), to.d_W = call.make(by.W[n], in.W[n]);
    if (spec.last_state) to.d_W_end = call.read(d.W[n]);
    if (spec.momentum) {
      by.S.emplace_back(), to.d_S = call.make(by.S[n], in.S[n]);
      if (spec.last_state) to.d_S_end = call.read(d.S[n]);
      continue;
    }
    by.b.push_back(spec.last_state ? d.b[n].clone(at::MemoryFormat::Contiguous) : at::zeros_like(in.b[n]));
    to.d_b = call.write(by.b[n]);
  }
  at::Tensor d_u, d_z;
  if (spec.layers == 2 && c.z[0].defined()) p.d_u = call.make(d_u, c.z[0][0]), p.d_z = call.make(d_z, c.z[0][0]);
  kernels.backward(p);
  return by;
}

}  // namespace lazy::fast_weights
