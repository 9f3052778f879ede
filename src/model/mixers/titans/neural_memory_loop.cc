#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "model/mixers/chunk_pieces.h"
#include "model/mixers/fast_weights/fast_weights.h"
#include "model/mixers/titans/neural_memory.h"

namespace lazy {
namespace {

at::Tensor memory_mlp(const MemoryWeights& weights, at::Tensor x) {  // x (batch, heads, tokens, dim)
  for (size_t n = 0; n < weights.size(); ++n) x = at::matmul(n == 0 ? x : at::gelu(x), weights[n]);
  return x;
}

// M(x) and |M(k) - v|^2, both as in neural_memory.h.
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

at::Tensor recall(const MemoryWeights& weights, const at::Tensor& norm, const at::Tensor& x) {
  return memory_model(weights, norm, x.transpose(1, 2)).transpose(1, 2);
}

std::tuple<at::Tensor, MemoryState> memory_loop(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                const at::Tensor& cu_seqlens) {
  const MemoryState initial = state;
  std::vector<at::Tensor> out;
  for (const ChunkPiece& piece : chunk_pieces(in.q.size(1), chunk, state.seen, cu_seqlens)) {
    if (piece.starts_document && cu_seqlens.defined()) state = initial;
    for (int64_t t = piece.begin; t < piece.begin + piece.length; ++t) {
      const auto token = [&](const at::Tensor& x) { return x.select(1, t).unsqueeze(2); };  // (batch, heads, 1, ...)
      const auto gate = [&](const at::Tensor& x) { return token(x).unsqueeze(3); };
      if (state.seen == 0) state.base = state.weights;
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
      state.seen = (state.seen + 1) % chunk;
    }
  }
  if (state.seen == 0) state.base = state.weights;
  return {at::stack(out, 1), cu_seqlens.defined() ? initial : state};
}

}  // namespace lazy
