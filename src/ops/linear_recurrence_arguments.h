// The linear recurrence's operators: their arguments and checks, without looking at data.
#pragma once
#include "ops/fused.h"
#include "ops/linear_recurrence.h"

namespace lazy::ops {

#define LAZY_RECURRENCE_PARAMETERS                                                                                            \
  const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const OptionalTensor &log_decay, const OptionalTensor &beta, \
      const OptionalTensor &skip, const OptionalTensor &initial_state, const OptionalTensor &documents, double scale, bool delta

using RecurrenceOutputs = std::tuple<at::Tensor, at::Tensor>;
// Of q, k, v, log_decay, beta, skip, initial_state; empty where there was none.
using RecurrenceGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

inline int64_t padded_key_dim(int64_t key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

inline void check_linear_recurrence(LAZY_RECURRENCE_PARAMETERS) {
  constexpr const char* kName = "linear_recurrence";
  const auto bf16 = [&](const char* name, const at::Tensor& t) {
    LAZY_CHECK(kName, t.dim() == 4 && t.scalar_type() == at::kBFloat16, name,
               " (batch, length, heads, dim) of bfloat16, received ", t.sym_sizes(), " of ", t.scalar_type());
    check_device(kName, name, t, v);
  };
  bf16("q", q);
  bf16("k", k);
  bf16("v", v);
  const auto B = v.sym_size(0), L = v.sym_size(1), H = v.sym_size(2), V = v.sym_size(3), G = q.sym_size(2), K = q.sym_size(3);
  LAZY_CHECK(kName, q.sym_sizes() == k.sym_sizes() && q.sym_size(0) == B && q.sym_size(1) == L && G > 0 && H % G == 0,
             "q and k of v's batch and length, and a divisor of its heads, received ", q.sym_sizes(), ", ", k.sym_sizes(), ", ",
             v.sym_sizes());
  LAZY_CHECK(kName, L > 0 && (K == 64 || K == 128 || K == 256) && V > 0 && V % 64 == 0,
             "a length, key_dim 64, 128 or 256 and value_dim a multiple of 64, received ", q.sym_sizes(), ", ", v.sym_sizes());
  LAZY_CHECK(kName, B < 32768 && H < 65536, "a batch below 32768 and heads below 65536, received ", v.sym_sizes());
  const auto f32 = [&](const char* name, const OptionalTensor& t, c10::SymIntArrayRef sizes) {
    if (!given(t)) return;
    LAZY_CHECK(kName, t->sym_sizes() == sizes && t->scalar_type() == at::kFloat, name, " ", sizes, " of float32, received ",
               t->sym_sizes(), " of ", t->scalar_type());
    check_device(kName, name, *t, v);
  };
  if (given(log_decay) && log_decay->dim() == 1) {
    f32("log_decay", log_decay, {H});
  } else {
    f32("log_decay", log_decay, {B, L, H});
  }
  f32("beta", beta, {B, L, H});
  f32("skip", skip, {H});
  f32("initial_state", initial_state, {B, H, K, V});
  LAZY_CHECK(kName, !delta || (given(beta) && !given(skip)), "beta and no skip with the delta rule, received ",
             given(beta) ? "a skip" : "no beta");
  if (given(documents)) {
    LAZY_CHECK(kName, B == 1 && documents->dim() == 1 && documents->sym_size(0) == L && documents->scalar_type() == at::kInt &&
                          !given(initial_state),
               "documents (", L, ") int32 with a batch of 1 and no initial_state, received ", documents->sym_sizes(), " of ",
               documents->scalar_type());
    check_device(kName, "documents", *documents, v);
  }
}

}  // namespace lazy::ops
