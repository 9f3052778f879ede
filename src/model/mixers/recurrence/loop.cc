#include "model/mixers/recurrence/loop.h"

#include <ATen/ATen.h>

#include <vector>

namespace lazy::recurrence {

Outputs loop(const char* operation, const Inputs& in, const Step& step) {
  check(operation, in);
  const at::ScalarType type = state_type(in.v);
  const int64_t B = in.v.size(0), L = in.v.size(1), H = in.v.size(2), K = in.q.size(3), V = in.v.size(3);
  const auto by_head = [&](const at::Tensor& t) { return t.to(type).repeat_interleave(H / t.size(2), 2).unbind(1); };
  const auto q = by_head(in.q * in.scale), k = by_head(in.k), v = by_head(in.v);
  std::vector<at::Tensor> log_decay, beta, out;
  if (in.log_decay.defined()) log_decay = in.log_decay.to(type).expand({B, L, H}).unbind(1);
  if (in.beta.defined()) beta = in.beta.to(type).unbind(1);
  std::vector<bool> begins(static_cast<size_t>(L) + 1, false);
  if (in.cu_seqlens.defined()) {
    const at::Tensor starts = in.cu_seqlens.to(at::kCPU, at::kLong).contiguous();
    for (int64_t i = 0; i < starts.numel(); ++i)
      begins.at(static_cast<size_t>(starts.const_data_ptr<int64_t>()[i])) = true;
  }
  const at::Tensor empty = at::zeros({B, H, K, V}, in.v.options().dtype(type));
  at::Tensor state = in.initial_state.defined() ? in.initial_state.to(type) : empty;
  for (size_t t = 0; t < static_cast<size_t>(L); ++t) {
    if (begins[t]) state = empty;
    out.push_back(
        step({q[t], k[t], v[t], log_decay.empty() ? at::Tensor() : log_decay[t], beta.empty() ? at::Tensor() : beta[t]},
             state));
  }
  return {L > 0 ? at::stack(out, 1).to(in.v.scalar_type()) : at::empty_like(in.v),
          in.cu_seqlens.defined() ? at::Tensor() : state};
}

}  // namespace lazy::recurrence
