#include "model/mixers/recurrence/recurrence.h"

#include <ATen/ATen.h>

#include <sstream>

#include "core/error.h"

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
    fail(operation, "expected v of q's batch and length with a multiple of its {} heads, found q {} and v {}",
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
         in.initial_state.defined() ? " with one" : "");
  }
}

at::Tensor documents_of(const at::Tensor& cu_seqlens, int64_t length, at::Device device) {
  const at::Tensor begins = cu_seqlens.to(device, /*non_blocking=*/true);
  return at::searchsorted(begins, at::arange(length, begins.options()), begins.scalar_type() == at::kInt,
                          /*right=*/true);
}

}  // namespace lazy::recurrence
