// B: batch, H: heads, T: tokens of a piece, D: dim.
#include <ATen/ATen.h>

#include "model/mixers/chunk_pieces.h"
#include "model/mixers/dual_form.h"
#include "model/mixers/titans/neural_memory.h"

namespace lazy {
namespace {

// gate_{s+1} * ... * gate_t for s <= t, else 0, from logarithms (B, H, T) -> (B, H, T, T). Each sum starts anew, so that no
// large sums are subtracted.
at::Tensor products_between(const at::Tensor& log_gate) {
  const int64_t T = log_gate.size(-1);
  return log_gate.unsqueeze(-1).expand({-1, -1, -1, T}).tril(-1).cumsum(-2).exp().tril();
}

// How S and M stand at each token of a piece, as multiples of what they were at its start and of its gradients.
struct Course {
  DualForm weights;    // M_t = keep_t M + carry_t S - sum steps_ts G_s
  at::Tensor momentum_keep, momentum_steps;  // S_T = keep S - sum steps_s G_s: (B, H, 1, 1), (B, H, T, 1)
};

Course course(const at::Tensor& step, const at::Tensor& log_momentum, const at::Tensor& log_keep) {
  const at::Tensor forgetting = products_between(log_keep), momentum = products_between(log_momentum);
  const at::Tensor since_start = log_momentum.cumsum(-1).exp().unsqueeze(-1);  // (B, H, T, 1)
  Course out;
  out.weights.keep = log_keep.cumsum(-1).exp().unsqueeze(-1);
  out.weights.carry = at::matmul(forgetting, since_start);
  out.weights.steps = at::matmul(forgetting, momentum) * step.unsqueeze(-2);
  const int64_t last = step.size(-1) - 1;
  out.momentum_keep = since_start.narrow(-2, last, 1);
  out.momentum_steps = (momentum.select(-2, last) * step).unsqueeze(-1);
  return out;
}

struct LayerSteps {
  at::Tensor u, g;
};

// Of |M(k) - v|^2: every layer's inputs and the gradients by its outputs, (B, H, T, ...).
std::vector<LayerSteps> gradient_steps(const MemoryWeights& weights, const at::Tensor& k, const at::Tensor& v) {
  std::vector<LayerSteps> steps = {{.u = k}};
  std::vector<at::Tensor> z;
  for (size_t n = 0; n < weights.size(); ++n) {
    z.push_back(at::matmul(steps[n].u, weights[n]));
    if (n + 1 < weights.size()) steps.push_back({.u = at::gelu(z[n])});
  }
  steps.back().g = 2 * (z.back() - v);
  for (size_t n = weights.size() - 1; n > 0; --n) {
    steps[n - 1].g = at::gelu_backward(at::matmul(steps[n].g, weights[n].transpose(-1, -2)), z[n - 1]);
  }
  return steps;
}

// One piece of a chunk, q, k, v (B, H, T, D), gates (B, H, T); advances the state.
at::Tensor piece_forward(MemoryState& state, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Course& course) {
  const auto steps = gradient_steps(state.base, k, v);
  const int64_t last = q.size(2) - 1;
  const at::Tensor keep = course.weights.keep.narrow(-2, last, 1), carry = course.weights.carry.narrow(-2, last, 1);
  const at::Tensor by_step = course.weights.steps.select(-2, last).unsqueeze(-1);  // (B, H, T, 1)
  at::Tensor x = q;
  for (size_t n = 0; n < steps.size(); ++n) {
    const auto& [u, g] = steps[n];
    x = read(course.weights, n == 0 ? x : at::gelu(x), state.weights[n], state.momentum[n], u, g);
    const at::Tensor u_T = u.transpose(-1, -2);
    state.weights[n] = keep * state.weights[n] + carry * state.momentum[n] - at::matmul(u_T, by_step * g);
    state.momentum[n] = course.momentum_keep * state.momentum[n] - at::matmul(u_T, course.momentum_steps * g);
  }
  return x;
}

}  // namespace

MemoryState memory_start(const MemoryWeights& weights, int64_t batch) {
  MemoryState state;
  for (const at::Tensor& w : weights) {
    state.weights.push_back(w.unsqueeze(0).expand({batch, -1, -1, -1}));
    state.momentum.push_back(at::zeros(state.weights.back().sizes(), w.options().requires_grad(false)));
  }
  state.base = state.weights;
  return state;
}

std::tuple<at::Tensor, MemoryState> memory_chunks(const MemoryInputs& in, MemoryState state, int64_t chunk, const at::Tensor& cu_seqlens) {
  const MemoryState initial = state;
  std::vector<at::Tensor> out;
  for (const ChunkPiece& piece : chunk_pieces(in.q.size(1), chunk, state.seen, cu_seqlens)) {
    if (piece.starts_document && cu_seqlens.defined()) state = initial;
    const auto tokens = [&](const at::Tensor& x) { return x.narrow(1, piece.begin, piece.length).transpose(1, 2); };
    out.push_back(piece_forward(state, tokens(in.q), tokens(in.k), tokens(in.v),
                                course(tokens(in.step), tokens(in.log_momentum), tokens(in.log_keep))));
    state.seen = piece.ends_chunk ? 0 : piece.place + piece.length;
    if (piece.ends_chunk) state.base = state.weights;
  }
  return {at::cat(out, 2).transpose(1, 2), state};
}

}  // namespace lazy
