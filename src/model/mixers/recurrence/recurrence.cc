#include "model/mixers/recurrence/recurrence.h"

#include <ATen/ATen.h>

#include <sstream>
#include <vector>

#include "core/error.h"
#include "ops/linear_recurrence.h"
#include "ops/recurrence_step.h"

namespace lazy::recurrence {

namespace {

std::string shape(const at::Tensor& t) {
  std::ostringstream out;
  out << t.sizes();
  return out.str();
}

}  // namespace

at::ScalarType state_type(const at::Tensor& v) { return v.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

void check(const char* operation, const Inputs& in) {
  if (in.q.dim() != 4 || in.v.dim() != 4 || in.q.sizes() != in.k.sizes()) {
    fail(operation,
         "expected q and k (batch, length, groups, key_dim) and v (batch, length, heads, value_dim), found {}, {}, {}",
         shape(in.q), shape(in.k), shape(in.v));
  }
  const int64_t B = in.v.size(0), L = in.v.size(1), H = in.v.size(2), V = in.v.size(3), K = in.q.size(3);
  if (in.q.size(0) != B || in.q.size(1) != L || in.q.size(2) == 0 || H % in.q.size(2) != 0) {
    fail(operation,
         "expected v with the batch size and length of q, and with a multiple of q's {} heads, found q {} and v {}",
         in.q.size(2), shape(in.q), shape(in.v));
  }
  const auto expect = [&](const char* name, const at::Tensor& t, at::IntArrayRef wanted) {
    if (t.defined() && t.sizes() != wanted) {
      std::ostringstream text;
      text << wanted;
      fail(operation, "expected {} of shape {}, found {}", name, text.str(), shape(t));
    }
  };
  if (in.log_decay.defined() && in.log_decay.dim() == 1) {
    expect("log_decay", in.log_decay, {H});
  } else {
    expect("log_decay", in.log_decay, {B, L, H});
  }
  expect("beta", in.beta, {B, L, H});
  expect("skip", in.skip, {H});
  expect("initial_state", in.initial_state, {B, H, K, V});
  if (in.cu_seqlens.defined() && (B != 1 || in.initial_state.defined())) {
    fail(operation, "packed documents: expected a batch of 1 and no initial state, found a batch of {}{}", B,
         in.initial_state.defined() ? " with an initial state" : "");
  }
}

at::Tensor documents_of(const at::Tensor& cu_seqlens, int64_t length, at::Device device) {
  const at::Tensor begins = cu_seqlens.to(device, /*non_blocking=*/true);
  return at::searchsorted(begins, at::arange(length, begins.options()), begins.scalar_type() == at::kInt,
                          /*right=*/true);
}

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

bool on_tensor_cores(const Inputs& in, bool delta) {
  return in.v.dim() == 4 && in.q.dim() == 4 && in.v.numel() > 0 && in.q.numel() > 0 &&
         ops::serves_linear_recurrence(in.q, in.v, delta);
}

namespace {

ops::LinearRecurrence call_of(const Inputs& in, bool delta) {
  return {in.q, in.k, in.v, in.log_decay, in.beta, in.skip, in.initial_state, {}, in.scale, delta};
}

}  // namespace

Outputs by_tensor_cores(const char* operation, const Inputs& in, bool delta) {
  check(operation, in);
  ops::LinearRecurrence call = call_of(in, delta);
  if (in.cu_seqlens.defined()) call.documents = documents_of(in.cu_seqlens.to(at::kInt), in.v.size(1), in.v.device());
  auto [out, state] = ops::linear_recurrence(call);
  return {out, state};
}

std::optional<Outputs> by_step_kernel(const char* operation, const Inputs& in, bool delta) {
  check(operation, in);
  const ops::LinearRecurrence call = call_of(in, delta);
  if (in.cu_seqlens.defined() || !ops::serves_recurrence_step(call)) return std::nullopt;
  auto [out, state] = ops::recurrence_step(call);
  return Outputs{out, state};
}

}  // namespace lazy::recurrence
