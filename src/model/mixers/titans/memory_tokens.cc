#include "model/mixers/titans/memory_tokens.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "model/mixers/fast_weights/fast_weights.h"
#include "ops/fast_weights.h"
#include "ops/fused.h"
#include "ops/rms_norm.h"

namespace lazy {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kDim = 64;

const ops::FastWeightsKernels* token_kernels_for(const at::Tensor& x, bool rounded) {
  if (!rounded || x.size(-1) != kDim || x.numel() == 0) return nullptr;
  return ops::fast_weights_kernels(x.device().type(), ops::kMemoryTokens, /*H=*/0, /*momentum=*/true);
}

at::Tensor empty(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, like.options().dtype(type).requires_grad(false));
}

// True if the kernel can load two neighboring elements of x at once, that is, if the last dimension is contiguous and
// all offsets are even.
bool in_pairs(const at::Tensor& x) {
  if (x.stride(-1) != 1 || x.storage_offset() % 2 != 0) return false;
  for (int64_t n = 0; n + 1 < x.dim(); ++n) {
    if (x.stride(n) % 2 != 0) return false;
  }
  return true;
}

ops::MemoryStream stream_of(const at::Tensor& x) {  // x: (B, H, tokens, dim)
  return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

// Returns the arguments of the kernel: q, k, v (B, H, tokens, dim), and the converted tokens (forward pass) or the
// gradients with respect to them (backward pass).
ops::MemoryTokens arguments(const variable_list& streams, const variable_list& made, bool residual) {
  const auto out = [&](size_t n) { return made[n].mutable_data_ptr<float>(); };
  const int64_t chunks = made[0].size(0);
  return {.shape = {chunks, streams[0].size(0), streams[0].size(1), made[0].size(2), streams[0].size(2)},
          .type = ops::row_type("memory_tokens", streams[0]),
          .q = stream_of(streams[0]),
          .k = stream_of(streams[1]),
          .v = stream_of(streams[2]),
          .residual = residual,
          .unit_q = out(0),
          .unit_k = out(1),
          .target = out(2)};
}

struct TokensNode : torch::autograd::Function<TokensNode> {
  static variable_list run(const variable_list& streams, int64_t chunks, int64_t T, bool residual) {
    const c10::DeviceGuard guard(streams[0].device());
    const at::Tensor& q = streams[0];
    const std::vector<int64_t> sizes = {chunks, q.size(0) * q.size(1), T, kDim};
    const variable_list made = {empty(q, sizes), empty(q, sizes), empty(q, sizes)};
    token_kernels_for(q, true)->tokens(arguments(streams, made, residual));
    return made;
  }
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               int64_t chunks, int64_t T, bool residual) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({q, k, v});
    context->saved_data["residual"] = residual;
    return run({q, k, v}, chunks, T, residual);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list streams = context->get_saved_variables();
    const c10::DeviceGuard device(streams[0].device());
    variable_list given, out;
    for (const at::Tensor& x : gradients) given.push_back(x.contiguous());
    ops::MemoryTokens p = arguments(streams, given, context->saved_data["residual"].toBool());
    for (const at::Tensor& x : streams) {
      out.push_back(empty(x, {x.size(0), x.size(2), x.size(1), kDim}, x.scalar_type()));
    }
    p.d_q = out[0].mutable_data_ptr(), p.d_k = out[1].mutable_data_ptr(), p.d_v = out[2].mutable_data_ptr();
    token_kernels_for(streams[0], true)->tokens_backward(p);
    for (at::Tensor& x : out) x = x.transpose(1, 2);
    out.resize(6);  // undefined gradients for the arguments that are not tensors
    return out;
  }
};

struct OutputsNode : torch::autograd::Function<OutputsNode> {
  static ops::MemoryOutputs arguments(const at::Tensor& z, const at::Tensor& norm, const at::Tensor& out) {
    const int64_t H = norm.size(0);
    return {.shape = {z.size(0), z.size(1) / H, H, z.size(2), out.size(1)},
            .type = ops::row_type("memory_outputs", out),
            .z = z.const_data_ptr<float>(),
            .norm = norm.const_data_ptr<float>()};
  }
  static at::Tensor run(const at::Tensor& z, const at::Tensor& x, const at::Tensor& norm, int64_t tokens,
                        at::ScalarType type) {
    const c10::DeviceGuard guard(z.device());
    const int64_t H = norm.size(0);
    at::Tensor out = empty(z, {z.size(1) / H, tokens, H, kDim}, type);
    ops::MemoryOutputs p = arguments(z, norm, out);
    p.x = x.const_data_ptr<float>(), p.out = out.mutable_data_ptr();
    token_kernels_for(z, true)->outputs(p);
    return out;
  }
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z, const at::Tensor& x, const at::Tensor& norm,
                            int64_t tokens, at::ScalarType type) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({z, norm});
    return run(z, x, norm, tokens, type);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &z = saved[0], &norm = saved[1],
                     d = in_pairs(gradients[0]) ? gradients[0] : gradients[0].contiguous();
    const c10::DeviceGuard device(z.device());
    ops::MemoryOutputs p = arguments(z, norm, d);
    at::Tensor d_z = at::empty_like(z), d_x = at::empty_like(z),
               d_norm = empty(z, {p.shape.chunks * p.shape.batch, p.shape.heads, kDim});
    p.d_out = stream_of(d.transpose(1, 2));
    p.d_z = d_z.mutable_data_ptr<float>(), p.d_x = d_x.mutable_data_ptr<float>();
    p.d_norm = d_norm.mutable_data_ptr<float>();
    token_kernels_for(z, true)->outputs_backward(p);
    return {d_z, d_x, d_norm.sum(0), {}, {}};
  }
};

}  // namespace

at::Tensor unit_length(const at::Tensor& x) {
  // RMSNorm divides by the root of the mean square, which is the sum of squares divided by dim. The weight and epsilon
  // below compensate for the factor dim.
  const auto dim = static_cast<double>(x.size(-1));
  const at::Tensor weight = at::full({x.size(-1)}, 1 / std::sqrt(dim), x.options().dtype(at::kFloat));
  return ops::rms_norm(x.to(at::kFloat), weight, 1e-6 / dim);
}

at::Tensor pad_tokens(const at::Tensor& x, int64_t length) {
  if (x.size(2) == length) return x;
  // The argument of constant_pad_nd: two padding lengths per dimension, from the last dimension to the token dimension.
  std::vector<int64_t> sides(static_cast<size_t>(2 * (x.dim() - 2)));
  sides.back() = length - x.size(2);
  return at::constant_pad_nd(x, sides);
}

MemoryTokensInChunks memory_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t chunks,
                                   int64_t T, bool raw, bool residual, bool rounded) {
  if (raw && token_kernels_for(q, rounded)) {
    variable_list streams;
    for (const at::Tensor& x : {q, k, v}) streams.push_back(in_pairs(x) ? x : x.contiguous());
    const variable_list t = at::GradMode::is_enabled()
                                ? TokensNode::apply(streams[0], streams[1], streams[2], chunks, T, residual)
                                : TokensNode::run(streams, chunks, T, residual);
    return {t[0], t[1], t[2]};
  }
  const auto by_chunk = [&](const at::Tensor& x) { return fast_weights::to_chunks(pad_tokens(x, chunks * T), chunks); };
  const at::Tensor unit_k = by_chunk(raw ? unit_length(k) : k), values = by_chunk(raw ? v.to(at::kFloat) : v);
  return {by_chunk(raw ? unit_length(q) : q), unit_k, residual ? values - unit_k : values};
}

at::Tensor memory_outputs(const at::Tensor& z, const at::Tensor& x, const at::Tensor& norm, int64_t B, int64_t tokens,
                          at::ScalarType type, bool rounded) {
  const auto by_text = [&](const at::Tensor& y) {
    return fast_weights::from_chunks(y, B).narrow(2, 0, tokens).to(type);
  };
  if (!norm.defined()) return by_text(z);
  if (token_kernels_for(z, rounded) && z.scalar_type() == at::kFloat && norm.scalar_type() == at::kFloat) {
    const at::Tensor outputs = z.contiguous(), inputs = x.contiguous(), weight = norm.contiguous();
    return (at::GradMode::is_enabled() ? OutputsNode::apply(outputs, inputs, weight, tokens, type)
                                       : OutputsNode::run(outputs, inputs, weight, tokens, type))
        .transpose(1, 2);
  }
  const at::Tensor normalized = at::layer_norm(z, {z.size(-1)}, {}, {}, kInnerNormEps);
  return by_text(at::addcmul(x, normalized, fast_weights::for_all(norm.unsqueeze(1), B)));
}

}  // namespace lazy
