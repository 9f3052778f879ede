#include "model/mixers/recurrence/linear_attention.h"

#include <ATen/ATen.h>

#include <vector>

#include "core/error.h"
#include "model/mixers/recurrence/chunks.h"

namespace lazy::recurrence {

namespace {

constexpr const char* kDecay = "decaying recurrence";

// The chunkwise form of the decaying recurrence. The H heads form G groups, and the R = H / G heads of a group share
// queries and keys. Their values are concatenated to (.., G, C, R V), with C tokens per chunk, so that one matrix
// product computes the outputs of all R heads.
ChunkOutputs decay_form(const Chunks& c) {
  const int64_t N = c.v.size(0), B = c.v.size(1), H = c.v.size(2), C = c.v.size(3), V = c.v.size(4);
  const int64_t G = c.k.size(2), K = c.k.size(4), R = H / G;
  const auto by_group = [&](const at::Tensor& decay) {  // reshapes (.., H, x, y) to (.., G, R, x, y)
    return decay.view({decay.size(0), decay.size(1), G, R, decay.size(3), decay.size(4)});
  };
  const at::Tensor scores = at::matmul(c.q, c.k.transpose(3, 4)).unsqueeze(3) * by_group(c.decays.pairs);
  const at::Tensor v = c.beta.defined() ? c.v * c.beta : c.v;
  const at::Tensor within = at::matmul(scores.view({N, B, H, C, C}), v);

  const at::Tensor v_faded =
      (v * c.decays.writes).view({N, B, G, R, C, V}).transpose(3, 4).reshape({N, B, G, C, R * V});
  const auto written = at::matmul(c.k.transpose(3, 4), v_faded).view({N, B, G, K, R, V}).unbind();
  const auto keeps = by_group(c.decays.keeps).transpose(3, 4).unbind();  // (.., G, 1, R, 1)
  at::Tensor state = c.state.view({B, G, R, K, V}).transpose(2, 3);
  std::vector<at::Tensor> before;
  for (size_t n = 0; n < written.size(); ++n) {
    before.push_back(state);
    state = at::addcmul(written[n], state, keeps[n]);
  }
  const at::Tensor read = at::matmul(c.q, at::stack(before).view({N, B, G, K, R * V}));
  const at::Tensor earlier = read.view({N, B, G, C, R, V}).transpose(3, 4).reshape({N, B, H, C, V});
  return {at::addcmul(within, earlier, c.decays.reads), state.transpose(2, 3).reshape({B, H, K, V})};
}

Outputs with_skip(const Inputs& in, Outputs y) {
  if (!in.skip.defined()) return y;
  const at::ScalarType type = state_type(in.v);
  y.out = at::addcmul(y.out.to(type), in.v.to(type), in.skip.to(type).unsqueeze(1)).to(in.v.scalar_type());
  return y;
}

}  // namespace

Outputs decay_loop(const Inputs& in) {
  const auto step = [](const Token& t, at::Tensor& state) {
    const at::Tensor v = t.beta.defined() ? t.v * t.beta.unsqueeze(2) : t.v;
    const at::Tensor written = t.k.unsqueeze(3) * v.unsqueeze(2);
    state = t.log_decay.defined() ? at::addcmul(written, state, t.log_decay.exp().unsqueeze(2).unsqueeze(3))
                                  : state + written;
    return at::matmul(t.q.unsqueeze(2), state).squeeze(2);
  };
  return with_skip(in, loop(kDecay, in, step));
}

Outputs decay_chunks(const Inputs& in, int64_t chunk) {
  if (on_tensor_cores(in, /*delta=*/false)) return by_tensor_cores(kDecay, in, false);
  return with_skip(in, by_chunks(kDecay, in, chunk, decay_form));
}

Outputs decay(const Inputs& in, int64_t chunk) {
  if (in.v.dim() != 4 || in.v.size(1) != 1) return decay_chunks(in, chunk);
  const std::optional<Outputs> step = by_step_kernel(kDecay, in, /*delta=*/false);
  return step ? *step : decay_loop(in);
}

namespace {

constexpr const char* kDeltaRule = "delta rule";

void check_delta_rule(const Inputs& in) {
  if (!in.beta.defined()) fail(kDeltaRule, "expected the input beta, found none");
  if (in.skip.defined()) fail(kDeltaRule, "the input skip is not supported");
  if (in.q.dim() == 4 && in.v.dim() == 4 && in.q.size(2) != in.v.size(2)) {
    fail(kDeltaRule, "the number of key heads must equal the number of value heads ({}), found {}", in.v.size(2),
         in.q.size(2));
  }
}

// The chunkwise form of the delta rule. Each token adds k u^T to the state S, where u = beta (v - S^T k), and S^T k is
// the value that S returns for k. The u of a token depends on the u of the earlier tokens in the chunk, which gives a
// unit lower triangular system of linear equations; T is the inverse of its matrix.
ChunkOutputs delta_form(const Chunks& c) {
  const int64_t N = c.v.size(0), B = c.v.size(1), H = c.v.size(2), C = c.v.size(3), V = c.v.size(4), K = c.k.size(4);
  const at::Tensor k_beta = c.k * c.beta, k_t = c.k.transpose(3, 4);
  const at::Tensor system = at::matmul(k_beta, k_t) * c.decays.pairs;  // only the part below the diagonal is used
  const at::Tensor identity = at::eye(C, c.k.options()).expand({N, B, H, C, C});
  const at::Tensor T =
      at::linalg_solve_triangular(system, identity, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  // The values u of all tokens for the case that the state before the chunk is zero.
  const auto u_alone = at::matmul(T, c.v * c.beta).view({N, B * H, C, V}).unbind();
  const auto held = at::matmul(T, k_beta * c.decays.reads).view({N, B * H, C, K}).unbind();
  const auto k_faded = (c.k * c.decays.writes).view({N, B * H, C, K}).transpose(2, 3).unbind();
  const auto keeps = c.decays.keeps.expand({N, B, H, 1, 1}).reshape({N, B * H, 1, 1}).unbind();

  at::Tensor state = c.state.reshape({B * H, K, V});
  std::vector<at::Tensor> before, added;
  for (size_t n = 0; n < keeps.size(); ++n) {
    before.push_back(state);
    added.push_back(at::baddbmm(u_alone[n], held[n], state, 1, -1));
    state = at::baddbmm(state * keeps[n], k_faded[n], added.back());
  }
  const at::Tensor u = at::stack(added).view({N, B, H, C, V}), states = at::stack(before).view({N, B, H, K, V});
  const at::Tensor within = at::matmul(at::matmul(c.q, k_t) * c.decays.pairs, u);
  return {at::matmul(c.q * c.decays.reads, states) + within, state.view({B, H, K, V})};
}

}  // namespace

Outputs delta_rule_loop(const Inputs& in) {
  check_delta_rule(in);
  return loop(kDeltaRule, in, [](const Token& t, at::Tensor& state) {
    if (t.log_decay.defined()) state = state * t.log_decay.exp().unsqueeze(2).unsqueeze(3);
    const at::Tensor held = at::matmul(t.k.unsqueeze(2), state).squeeze(2);
    state = state + t.k.unsqueeze(3) * ((t.v - held) * t.beta.unsqueeze(2)).unsqueeze(2);
    return at::matmul(t.q.unsqueeze(2), state).squeeze(2);
  });
}

Outputs delta_rule_chunks(const Inputs& in, int64_t chunk) {
  check_delta_rule(in);
  if (on_tensor_cores(in, /*delta=*/true)) return by_tensor_cores(kDeltaRule, in, true);
  return by_chunks(kDeltaRule, in, chunk, delta_form);
}

Outputs delta_rule(const Inputs& in, int64_t chunk) {
  if (in.v.dim() != 4 || in.v.size(1) != 1) return delta_rule_chunks(in, chunk);
  check_delta_rule(in);
  const std::optional<Outputs> step = by_step_kernel(kDeltaRule, in, /*delta=*/true);
  return step ? *step : delta_rule_loop(in);
}

}  // namespace lazy::recurrence
