// Reference implementations of the neural memory and of TTT, token by token, with gradients by autograd.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "model/mixers/chunked_scan.h"
#include "model/mixers/fast_weights/fast_weights.h"
#include "model/mixers/recurrence/recurrence.h"
#include "model/mixers/reference_rules.h"
#include "model/mixers/titans/neural_memory.h"
#include "model/mixers/ttt_rule.h"

namespace lazy {

namespace {

at::Tensor memory_mlp(const MemoryWeights& weights, at::Tensor x) {  // x: (batch, heads, tokens, dim)
  for (size_t n = 0; n < weights.size(); ++n) x = at::matmul(n == 0 ? x : at::gelu(x), weights[n]);
  return x;
}

// Returns the output M(x) of the memory, as defined in neural_memory.h. The loss of the memory is |M(k) - v|^2.
at::Tensor memory_model(const MemoryWeights& weights, const at::Tensor& norm, const at::Tensor& x) {
  const at::Tensor z = memory_mlp(weights, x);
  if (!norm.defined()) return z;
  return x + at::layer_norm(z, {z.size(-1)}, {}, {}, kInnerNormEps) * norm.unsqueeze(1);
}

at::Tensor memory_error(const at::Tensor& e, bool bounded) {
  const at::Tensor square = e.square().sum(-1);
  if (!bounded) return square;
  const auto dim = static_cast<double>(e.size(-1));
  return at::where(square.le(dim), square, 2 * (square.clamp_min(dim) * dim).sqrt() - dim);
}

}  // namespace

std::tuple<at::Tensor, MemoryState> reference_memory(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                     const at::Tensor& cu_seqlens) {
  const MemoryState initial = state;
  std::vector<at::Tensor> out;
  for (const ChunkSpan& piece : split_into_chunks(in.q.size(1), chunk, state.chunk_position, cu_seqlens)) {
    if (piece.starts_document && cu_seqlens.defined()) state = initial;
    for (int64_t t = piece.begin; t < piece.begin + piece.length; ++t) {
      const auto token = [&](const at::Tensor& x) { return x.select(1, t).unsqueeze(2); };  // (batch, heads, 1, ...)
      const auto gate = [&](const at::Tensor& x) { return token(x).unsqueeze(3); };
      if (state.chunk_position == 0) state.base = state.weights;
      std::vector<at::Tensor> gradients;
      {
        at::AutoGradMode enable(true);
        MemoryWeights base = state.base;
        for (at::Tensor& w : base) w = w.requires_grad() ? w : w.detach().requires_grad_();
        const at::Tensor loss =
            memory_error(memory_model(base, in.norm, token(in.k)) - token(in.v), !in.norm.defined()).sum();
        gradients = torch::autograd::grad({loss}, base, {}, /*retain_graph=*/true, /*create_graph=*/true);
      }
      for (size_t n = 0; n < gradients.size(); ++n) {
        state.momentum[n] = gate(in.log_momentum).exp() * state.momentum[n] - gate(in.step) * gradients[n];
        state.weights[n] = gate(in.log_keep).exp() * state.weights[n] + state.momentum[n];
      }
      out.push_back(memory_model(state.weights, in.norm, token(in.q)).squeeze(2));
      state.chunk_position = (state.chunk_position + 1) % chunk;
    }
  }
  if (state.chunk_position == 0) state.base = state.weights;
  return {at::stack(out, 1), cu_seqlens.defined() ? initial : state};
}

namespace {

// Returns the output f(x) of TTT's inner model with weights w. x: (batch, heads, 1, dim).
at::Tensor inner_model(const TttWeights& w, const at::Tensor& x, const TttInputs& in) {
  at::Tensor z = at::matmul(x, w.W[0]) + w.b[0];
  if (w.W.size() == 2) z = at::matmul(at::gelu(z, "tanh"), w.W[1]) + w.b[1];
  const at::Tensor normalized = at::layer_norm(z, {z.size(-1)}, {}, {}, kTttNormEps);
  return normalized * in.norm_weight.unsqueeze(1) + in.norm_bias.unsqueeze(1);
}

std::vector<at::Tensor> flat_weights(const TttWeights& w) {
  std::vector<at::Tensor> out = w.W;
  out.insert(out.end(), w.b.begin(), w.b.end());
  return out;
}

TttWeights unflat_weights(const std::vector<at::Tensor>& all) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  return {{all.begin(), middle}, {middle, all.end()}};
}

// Returns the weights after a gradient step: start - scale * sums, where `sums` are the accumulated gradients.
TttWeights stepped(const TttState& state, const at::Tensor& scale) {
  std::vector<at::Tensor> out;
  const auto start = flat_weights(state.start), sums = flat_weights(state.sums);
  for (size_t n = 0; n < start.size(); ++n) out.push_back(start[n] - scale * sums[n]);
  return unflat_weights(out);
}

}  // namespace

std::tuple<at::Tensor, TttState> reference_ttt(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens) {
  const int64_t K = in.position_scale.size(0);
  const TttState initial = state;
  std::vector<at::Tensor> out;
  for (const ChunkSpan& piece : split_into_chunks(in.q.size(1), K, state.chunk_position, cu_seqlens)) {
    if (piece.starts_document && cu_seqlens.defined()) state = initial;
    for (int64_t t = piece.begin; t < piece.begin + piece.length; ++t) {
      const auto token = [&](const at::Tensor& x) { return x.select(1, t).unsqueeze(2); };  // (batch, heads, 1, ...)
      const at::Tensor q = token(in.q), k = token(in.k), v = token(in.v), rate = token(in.rate).unsqueeze(3);
      std::vector<at::Tensor> gradients;
      {
        at::AutoGradMode enable(true);
        std::vector<at::Tensor> weights = flat_weights(state.start);
        for (at::Tensor& w : weights) w = w.requires_grad() ? w : w.detach().requires_grad_();
        const at::Tensor loss = (inner_model(unflat_weights(weights), k, in) - (v - k)).pow(2).sum() / 2;
        gradients = torch::autograd::grad({loss}, weights, {}, /*retain_graph=*/true, /*create_graph=*/true);
      }
      std::vector<at::Tensor> sums = flat_weights(state.sums);
      for (size_t n = 0; n < sums.size(); ++n) sums[n] = sums[n] + rate * gradients[n];
      state.sums = unflat_weights(sums);
      const TttWeights now = stepped(state, in.position_scale[state.chunk_position]);
      out.push_back((q + inner_model(now, q, in)).squeeze(2));
      if (++state.chunk_position < K) continue;
      state.start = now;
      for (at::Tensor& sum : sums) sum = at::zeros_like(sum);
      state.sums = unflat_weights(sums);
      state.chunk_position = 0;
    }
  }
  return {at::stack(out, 1), cu_seqlens.defined() ? initial : state};
}

recurrence::Convolution reference_short_convolution(const recurrence::ConvolutionInputs& in) {
  const at::ScalarType type = recurrence::state_type(in.x);
  const int64_t taps = in.weight.size(2), length = in.x.size(1);
  const at::Tensor padded = in.state.defined() ? at::cat({in.state.to(in.x.scalar_type()), in.x}, 1)
                                               : at::constant_pad_nd(in.x, {0, 0, taps - 1, 0});
  const at::Tensor x = padded.to(type), weight = in.weight.to(type);
  // For each token, the number of earlier tokens in the same document; `taps` if documents are not packed.
  std::vector<int64_t> earlier(static_cast<size_t>(length), taps);
  if (in.cu_seqlens.defined()) {
    const at::Tensor begins = in.cu_seqlens.to(at::kCPU, at::kLong);
    for (int64_t n = 0; n + 1 < begins.numel(); ++n) {
      const int64_t begin = begins[n].item<int64_t>(), end = begins[n + 1].item<int64_t>();
      for (int64_t t = begin; t < end; ++t) earlier[static_cast<size_t>(t)] = t - begin;
    }
  }
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < length; ++t) {
    at::Tensor sum = at::zeros({x.size(0), x.size(2)}, x.options());
    for (int64_t j = 0; j < taps; ++j) {
      if (earlier[static_cast<size_t>(t)] >= taps - 1 - j) {
        sum = sum + x.select(1, t + j) * weight.select(2, j).squeeze(1);
      }
    }
    if (in.bias.defined()) sum = sum + in.bias.to(type);
    out.push_back(at::silu(sum));
  }
  const at::Tensor state = in.cu_seqlens.defined() ? at::Tensor() : padded.narrow(1, length, taps - 1).detach().clone();
  return {length > 0 ? at::stack(out, 1).to(in.x.scalar_type()) : at::empty_like(in.x), state};
}

}  // namespace lazy
