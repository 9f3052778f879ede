// B: batch, H: heads, T: tokens of a piece, D: dim.
#include <ATen/ATen.h>

#include "model/mixers/chunk_pieces.h"
#include "model/mixers/dual_form.h"
#include "model/mixers/ttt/ttt_rule.h"

namespace lazy {
namespace {

// Of LayerNorm(z) * weight + bias and of 1/2 |that - target|^2 by z. Its own gradients serve the outer loop.
struct InnerNorm {
  at::Tensor weight, bias;  // (H, 1, D)

  at::Tensor forward(const at::Tensor& z) const {
    return at::layer_norm(z, {z.size(-1)}, {}, {}, kTttNormEps) * weight + bias;
  }
  at::Tensor loss_gradient(const at::Tensor& z, const at::Tensor& target) const {
    const auto [normalized, mean, rstd] = at::native_layer_norm(z, {z.size(-1)}, {}, {}, kTttNormEps);
    const at::Tensor d_normalized = (normalized * weight + bias - target) * weight;
    return std::get<0>(at::native_layer_norm_backward(d_normalized, z, {z.size(-1)}, mean, rstd, {}, {}, {true, false, false}));
  }
};

// A layer's inputs and the loss's gradients by its outputs, for every token.
struct LayerSteps {
  at::Tensor u, g;
};

std::vector<LayerSteps> gradient_steps(const TttWeights& w, const at::Tensor& k, const at::Tensor& target, const InnerNorm& norm) {
  const at::Tensor z = at::matmul(k, w.W[0]) + w.b[0];
  if (w.W.size() == 1) return {{k, norm.loss_gradient(z, target)}};
  const at::Tensor hidden = at::gelu(z, "tanh");
  const at::Tensor g = norm.loss_gradient(at::matmul(hidden, w.W[1]) + w.b[1], target);
  return {{k, at::gelu_backward(at::matmul(g, w.W[1].transpose(-1, -2)), z, "tanh")}, {hidden, g}};
}

// One piece of a mini-batch, all (B, H, T, D), rate (B, H, T); advances the state.
at::Tensor piece_forward(TttState& state, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& rate,
                         const at::Tensor& place_scale, const InnerNorm& norm, bool ends_mini_batch) {
  const auto steps = gradient_steps(state.start, k, v - k, norm);
  const at::Tensor scale = place_scale.unsqueeze(1);  // (T, 1)
  const DualForm form{.carry = state.seen > 0 ? -scale : at::Tensor(), .steps = (scale * rate.unsqueeze(-2)).tril()};
  at::Tensor x = q;
  for (size_t n = 0; n < steps.size(); ++n) {
    if (n > 0) x = at::gelu(x, "tanh");
    x = read(form, x, state.start.W[n], state.sums.W[n], steps[n].u, steps[n].g, {state.start.b[n], state.sums.b[n]});
  }
  for (size_t n = 0; n < steps.size(); ++n) {
    const at::Tensor weighted = rate.unsqueeze(-1) * steps[n].g;
    at::Tensor sum_W = at::matmul(steps[n].u.transpose(-1, -2), weighted), sum_b = weighted.sum(-2, /*keepdim=*/true);
    if (state.seen > 0) sum_W = state.sums.W[n] + sum_W, sum_b = state.sums.b[n] + sum_b;
    if (ends_mini_batch) {
      const at::Tensor last = place_scale[-1];
      state.start.W[n] = state.start.W[n] - last * sum_W;
      state.start.b[n] = state.start.b[n] - last * sum_b;
    } else {
      state.sums.W[n] = sum_W, state.sums.b[n] = sum_b;
    }
  }
  state.seen = ends_mini_batch ? 0 : state.seen + q.size(2);
  return q + norm.forward(x);
}

}  // namespace

TttState ttt_start(const TttWeights& weights, int64_t batch) {
  TttState state;
  const auto fill = [&](const std::vector<at::Tensor>& from, std::vector<at::Tensor>& start, std::vector<at::Tensor>& sums) {
    for (const at::Tensor& w : from) {
      start.push_back(w.unsqueeze(0).expand({batch, -1, -1, -1}));
      sums.push_back(at::zeros(start.back().sizes(), w.options().requires_grad(false)));
    }
  };
  fill(weights.W, state.start.W, state.sums.W);
  fill(weights.b, state.start.b, state.sums.b);
  return state;
}

std::tuple<at::Tensor, TttState> ttt_chunks(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens) {
  const InnerNorm norm{in.norm_weight.unsqueeze(1), in.norm_bias.unsqueeze(1)};
  const TttState initial = state;
  std::vector<at::Tensor> out;
  for (const ChunkPiece& piece : chunk_pieces(in.q.size(1), in.place_scale.size(0), state.seen, cu_seqlens)) {
    if (piece.starts_document && cu_seqlens.defined()) state = initial;
    const auto tokens = [&](const at::Tensor& x) { return x.narrow(1, piece.begin, piece.length).transpose(1, 2); };
    out.push_back(piece_forward(state, tokens(in.q), tokens(in.k), tokens(in.v), tokens(in.rate),
                                in.place_scale.narrow(0, piece.place, piece.length), norm, piece.ends_chunk));
  }
  if (state.seen == 0) {  // nothing of the next mini-batch
    for (at::Tensor& sum : state.sums.W) sum = at::zeros(sum.sizes(), sum.options().requires_grad(false));
    for (at::Tensor& sum : state.sums.b) sum = at::zeros(sum.sizes(), sum.options().requires_grad(false));
  }
  return {at::cat(out, 2).transpose(1, 2), state};
}

}  // namespace lazy
