// B: batch, H: heads, T: tokens of a piece, D: dim.
#include <ATen/ATen.h>

#include "model/mixers/chunk_pieces.h"
#include "model/mixers/dual_form.h"
#include "model/mixers/piecewise.h"
#include "model/mixers/titans/neural_memory.h"

namespace lazy {
namespace {

// gate_{s+1} * ... * gate_t for s <= t, else 0, from logarithms (B, H, T) -> (B, H, T, T). Each sum starts anew, so
// that no large sums are subtracted.
at::Tensor products_between(const at::Tensor& log_gate) {
  const int64_t T = log_gate.size(-1);
  return log_gate.unsqueeze(-1).expand({-1, -1, -1, T}).tril(-1).cumsum(-2).exp().tril();
}

// How S and M stand at each token of a piece, as multiples of what they were at its start and of its gradients.
struct Course {
  DualForm weights;                          // M_t = keep_t M + carry_t S - sum steps_ts G_s
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

struct MemorySteps {
  at::Tensor u, g;
};

// Of |M(k) - v|^2: every layer's inputs and the gradients by its outputs, (B, H, T, ...).
std::vector<MemorySteps> memory_steps(const MemoryWeights& weights, const at::Tensor& k, const at::Tensor& v) {
  std::vector<MemorySteps> steps = {{.u = k}};
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

}  // namespace

at::Tensor memory_piece(const ChunkPiece& piece, const TensorList& tokens, TensorList& state) {
  MemoryState s = memory_state(state, piece.place);
  const auto steps = memory_steps(s.base, tokens[1], tokens[2]);
  const Course c = course(tokens[3], tokens[4], tokens[5]);
  const int64_t last = piece.length - 1;
  const at::Tensor keep = c.weights.keep.narrow(-2, last, 1), carry = c.weights.carry.narrow(-2, last, 1);
  const at::Tensor by_step = c.weights.steps.select(-2, last).unsqueeze(-1);  // (B, H, T, 1)
  at::Tensor x = tokens[0];
  for (size_t n = 0; n < steps.size(); ++n) {
    const auto& [u, g] = steps[n];
    x = read(c.weights, n == 0 ? x : at::gelu(x), s.weights[n], s.momentum[n], u, g);
    const at::Tensor u_T = u.transpose(-1, -2);
    s.weights[n] = keep * s.weights[n] + carry * s.momentum[n] - at::matmul(u_T, by_step * g);
    s.momentum[n] = c.momentum_keep * s.momentum[n] - at::matmul(u_T, c.momentum_steps * g);
  }
  if (piece.ends_chunk) s.base = s.weights;
  state = tensors(s);
  return x;
}

TensorList tensors(const MemoryState& s) {
  TensorList out = s.weights;
  for (const auto* list : {&s.momentum, &s.base}) out.insert(out.end(), list->begin(), list->end());
  return out;
}

MemoryState memory_state(const TensorList& all, int64_t seen) {
  const auto third = [&](std::ptrdiff_t n) {
    const auto layers = static_cast<std::ptrdiff_t>(all.size() / 3);
    return TensorList(all.begin() + n * layers, all.begin() + (n + 1) * layers);
  };
  return {third(0), third(1), third(2), seen};
}

MemoryState memory_start(const MemoryWeights& weights, int64_t batch) {
  MemoryState state;
  for (const at::Tensor& w : weights) {
    state.weights.push_back(w.unsqueeze(0).expand({batch, -1, -1, -1}));
    state.momentum.push_back(at::zeros(state.weights.back().sizes(), w.options().requires_grad(false)));
  }
  state.base = state.weights;
  return state;
}

std::tuple<at::Tensor, MemoryState> memory_chunks(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                  const at::Tensor& cu_seqlens) {
  const auto pieces = chunk_pieces(in.q.size(1), chunk, state.seen, cu_seqlens);
  const auto [out, last] = piecewise(pieces, {in.q, in.k, in.v, in.step, in.log_momentum, in.log_keep}, {},
                                     tensors(state), cu_seqlens.defined(),
                                     [](const ChunkPiece& piece, const TensorList& tokens, const TensorList&,
                                        TensorList& now) { return memory_piece(piece, tokens, now); });
  return {out, memory_state(last, pieces.back().ends_chunk ? 0 : pieces.back().place + pieces.back().length)};
}

}  // namespace lazy
