#include "model/mixers/recurrence/tensor_cores.h"

#include <ATen/ATen.h>

#include "ops/linear_recurrence.h"

namespace lazy::recurrence {

bool on_tensor_cores(const Inputs& in, bool delta) {
  return in.v.is_cuda() && in.v.dim() == 4 && in.q.dim() == 4 && in.v.numel() > 0 && in.q.numel() > 0 &&
         ops::serves_linear_recurrence(in.q, in.v, delta);
}

Outputs by_tensor_cores(const char* operation, const Inputs& in, bool delta) {
  check(operation, in);
  ops::LinearRecurrence call{in.q, in.k, in.v, in.log_decay, in.beta, in.skip, in.initial_state, {}, in.scale, delta};
  if (in.cu_seqlens.defined()) call.documents = documents_of(in.cu_seqlens.to(at::kInt), in.v.size(1), in.v.device());
  auto [out, state] = ops::linear_recurrence(call);
  return {out, state};
}

}  // namespace lazy::recurrence
