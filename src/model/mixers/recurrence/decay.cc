#include "model/mixers/recurrence/decay.h"

#include <ATen/ATen.h>

#include <vector>

#include "model/mixers/recurrence/chunks.h"
#include "model/mixers/recurrence/loop.h"
#include "model/mixers/recurrence/tensor_cores.h"

namespace lazy::recurrence {
namespace {

constexpr const char* kDecay = "decaying recurrence";

// R = H / G heads read and write with the same queries and keys: their values stand side by side, (.., G, C, R V), so
// that one product serves all.
ChunkOutputs decay_form(const Chunks& c) {
  const int64_t N = c.v.size(0), B = c.v.size(1), H = c.v.size(2), C = c.v.size(3), V = c.v.size(4);
  const int64_t G = c.k.size(2), K = c.k.size(4), R = H / G;
  const auto by_group = [&](const at::Tensor& decay) {  // (.., H, x, y) -> (.., G, R, x, y)
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
  return in.v.dim() == 4 && in.v.size(1) == 1 ? decay_loop(in) : decay_chunks(in, chunk);
}

}  // namespace lazy::recurrence
