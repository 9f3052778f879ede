#include "model/mixers/fast_weights/internal.h"
#include "model/mixers/fast_weights/kernels.h"

namespace lazy::fast_weights {

namespace {

template <typename Visit>
void each(SavedActivations& c, const TensorSpec& spec, const Visit& visit) {
  const auto list = [&](std::vector<at::Tensor>& tensors, size_t count) {
    tensors.resize(count);
    for (at::Tensor& t : tensors) visit(t);
  };
  list(c.W, spec.layers), list(c.b, spec.bias ? spec.layers : 0), list(c.S, spec.momentum ? spec.layers : 0);
  list(c.u, spec.layers), list(c.g, spec.layers);
  list(c.z, spec.layers), list(c.t, spec.layers - 1), list(c.x, spec.layers - 1);
}

struct Steps {
  const FastWeights& in;
  at::Tensor offset;  // norm_bias - target
  const TensorSpec& spec;
  SavedActivations& c;
  FastWeightsResult& after;

  size_t last() const { return spec.layers - 1; }
  // Returns the tensor to which the state of layer n after `chunk` is written: the entry of the next chunk in `all`,
  // or, after the last chunk, a new tensor in `after_all`.
  static at::Tensor next(const at::Tensor& all, std::vector<at::Tensor>& after_all, size_t n, int64_t chunk) {
    if (chunk + 1 < all.size(0)) return all.select(0, chunk + 1);
    return after_all[n] = at::empty(all.sizes().slice(1), all.options());
  }

  // Computes the inner gradients of the chunk's tokens, evaluated at the weights at the start of the chunk.
  void gradients(int64_t chunk) const {
    const Gelu act = gelu_of(spec);
    const auto at_chunk = [&](const at::Tensor& x) { return x.select(0, chunk); };
    at::Tensor z;
    for (size_t n = 0; n <= last(); ++n) {
      const at::Tensor u = at_chunk(c.u[n]), W = at_chunk(c.W[n]);
      z = at_chunk(c.z[n]);
      if (spec.bias)
        at::baddbmm_out(z, at_chunk(c.b[n]), u, W);
      else
        at::bmm_out(z, u, W);
      if (n < last()) act.write(at_chunk(c.u[n + 1]), z);
    }
    if (spec.norm) {
      at_chunk(c.g[last()]).copy_(InnerNorm{in.norm_weight}.gradient(z, at_chunk(offset)));
    } else {
      at_chunk(c.g[last()]).copy_(error_gradient(z.sub_(at_chunk(in.target))));
    }
    for (size_t n = last(); n > 0; --n) {
      at::Tensor t = at_chunk(c.t[n - 1]);
      at::bmm_out(t, at_chunk(c.g[n]), transposed(at_chunk(c.W[n])));
      act.write_backward(at_chunk(c.g[n - 1]), t, at_chunk(c.z[n - 1]));
    }
  }

  void advance(int64_t chunk) {
    const auto at_chunk = [&](const at::Tensor& x) { return x.select(0, chunk); };
    for (size_t n = 0; n <= last(); ++n) {
      const at::Tensor u = at_chunk(c.u[n]), g = at_chunk(c.g[n]), W = at_chunk(c.W[n]), steps = at_chunk(in.steps);
      at::Tensor W_next = next(c.W[n], after.W, n, chunk);
      if (!spec.momentum) {
        const at::Tensor stepped = steps * g;
        at::baddbmm_out(W_next, W, transposed(u), stepped, 1, -1);
        if (!spec.bias) continue;
        at::Tensor b_next = next(c.b[n], after.b, n, chunk);
        at::sub_out(b_next, at_chunk(c.b[n]), stepped.sum(-2, /*keepdim=*/true));
        continue;
      }
      // Computes to -= u^T (rows * g), where `rows` has one factor per token. The factor is applied to u or to g,
      // whichever has fewer columns.
      const auto step = [&](at::Tensor& to, const at::Tensor& rows) {
        const bool at_input = u.size(-1) < g.size(-1);
        to.baddbmm_(transposed(at_input ? rows * u : u), at_input ? g : rows * g, 1, -1);
      };
      const at::Tensor S = at_chunk(c.S[n]);
      at::mul_out(W_next, W, at_chunk(in.keep)).addcmul_(S, at_chunk(in.carry));
      step(W_next, steps);
      at::Tensor S_next = next(c.S[n], after.S, n, chunk);
      at::mul_out(S_next, S, at_chunk(in.momentum_keep));
      step(S_next, at_chunk(in.momentum_steps));
    }
  }

  // Computes the outputs for q, in one operation for all chunks.
  at::Tensor read() const {
    const Gelu act = gelu_of(spec);
    at::Tensor a = in.q, y;
    for (size_t n = 0; n <= last(); ++n) {
      // Multiply the per-token factors into the tensor with fewer columns.
      if (spec.momentum && a.size(-1) < c.W[n].size(-1)) {
        y = product(a * in.read_keep, c.W[n]);
        accumulate(y, a * in.read_carry, c.S[n]);
      } else {
        y = product(a, c.W[n]);
        if (spec.momentum) y.mul_(in.read_keep).addcmul_(product(a, c.S[n]), in.read_carry);
      }
      if (spec.bias) y.add_(c.b[n]);
      at::Tensor overlap = product(a, transposed(c.u[n]));
      if (spec.bias) overlap.add_(1);  // the bias acts as a weight whose input is always 1
      accumulate(y, overlap.mul_(in.read_steps), c.g[n], -1);
      if (n == last()) break;
      c.x[n] = y;
      a = act(y);
    }
    return y;
  }
};

}  // namespace

std::vector<at::Tensor> flatten(const SavedActivations& activations) {
  SavedActivations copy = activations;
  std::vector<at::Tensor> list;
  const TensorSpec spec{copy.W.size(), false, !copy.b.empty(), !copy.S.empty(), false, false, false};
  each(copy, spec, [&](const at::Tensor& t) { list.push_back(t); });
  if (activations.overlap.defined()) list.insert(list.end(), {activations.overlap, activations.kept});
  return list;
}

SavedActivations unflatten_activations(const std::vector<at::Tensor>& list, const TensorSpec& spec) {
  SavedActivations activations;
  size_t next = 0;
  each(activations, spec, [&](at::Tensor& t) { t = list[next++]; });
  if (next < list.size()) activations.overlap = list[next], activations.kept = list[next + 1];
  return activations;
}

FastWeightsResult forward(const FastWeights& in, const TensorSpec& spec, SavedActivations& c, bool for_backward) {
  const int64_t C = in.q.size(0), N = in.q.size(1), T = in.q.size(2);
  const auto rows = [&](int64_t width) { return at::empty({C, N, T, width}, in.q.options()); };
  const auto* const kernels = kernels_for(in, spec);
  // Allocates the states at the start of all chunks. The first entry is a copy of `start`, except with in_place: the
  // kernels read the initial W and S from the inputs.
  const auto chunks_from = [&](const at::Tensor& start, bool in_place) {
    const at::Tensor all = at::empty({C, start.size(0), start.size(1), start.size(2)}, start.options());
    if (!in_place) all.select(0, 0).copy_(start);
    return all;
  };
  FastWeightsResult after;
  const int64_t kept_bytes = kernels ? bytes_kept(*kernels, in, spec) : 0;
  if (kept_bytes > 0) {
    c.W.resize(spec.layers), c.S.resize(spec.layers), c.u.resize(spec.layers), c.g.resize(spec.layers);
    c.z.resize(spec.layers), c.t.resize(spec.layers - 1), c.x.resize(spec.layers - 1);
    c.g.back() = rows(in.W.back().size(-1)), c.z.back() = rows(in.W.back().size(-1));
    if (for_backward) c.kept = at::empty({C, N, kept_bytes}, in.q.options().dtype(at::kByte));
    return run_forward(*kernels, in, spec, c, for_backward);
  }
  for (size_t n = 0; n < spec.layers; ++n) {
    const int64_t width = in.W[n].size(-1);
    c.W.push_back(chunks_from(in.W[n], kernels));
    c.u.push_back(n == 0 ? in.k : rows(in.W[n].size(-2)));
    c.g.push_back(rows(width));
    if (spec.bias) c.b.push_back(chunks_from(in.b[n], false));
    if (spec.momentum) c.S.push_back(chunks_from(in.S[n], kernels));
    c.z.push_back(rows(width));
    if (n + 1 < spec.layers) c.t.push_back(rows(width)), c.x.emplace_back();
  }
  if (kernels) return run_forward(*kernels, in, spec, c, for_backward);
  if (spec.last_state) after.W.resize(spec.layers), after.b.resize(c.b.size()), after.S.resize(c.S.size());
  const RoundedProducts rounded(spec.rounded);
  Steps steps{in, spec.norm ? in.norm_bias - in.target : at::Tensor(), spec, c, after};
  for (int64_t chunk = 0; chunk < C; ++chunk) {
    steps.gradients(chunk);
    if (chunk + 1 < C || spec.last_state) steps.advance(chunk);
  }
  after.out = steps.read();
  return after;
}

}  // namespace lazy::fast_weights
