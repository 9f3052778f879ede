#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "model/mixers/chunk_pieces.h"
#include "model/mixers/ttt/ttt_rule.h"

namespace lazy {
namespace {

// f(x), x (batch, heads, 1, dim)
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

// start - scale * sums
TttWeights stepped(const TttState& state, const at::Tensor& scale) {
  std::vector<at::Tensor> out;
  const auto start = flat_weights(state.start), sums = flat_weights(state.sums);
  for (size_t n = 0; n < start.size(); ++n) out.push_back(start[n] - scale * sums[n]);
  return unflat_weights(out);
}

}  // namespace

std::tuple<at::Tensor, TttState> ttt_loop(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens) {
  const int64_t K = in.place_scale.size(0);
  const TttState initial = state;
  std::vector<at::Tensor> out;
  for (const ChunkPiece& piece : chunk_pieces(in.q.size(1), K, state.seen, cu_seqlens)) {
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
      const TttWeights now = stepped(state, in.place_scale[state.seen]);
      out.push_back((q + inner_model(now, q, in)).squeeze(2));
      if (++state.seen < K) continue;
      state.start = now;
      for (at::Tensor& sum : sums) sum = at::zeros_like(sum);
      state.sums = unflat_weights(sums);
      state.seen = 0;
    }
  }
  return {at::stack(out, 1), cu_seqlens.defined() ? initial : state};
}

}  // namespace lazy
