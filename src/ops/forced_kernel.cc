#include "ops/forced_kernel.h"

#include <cstdlib>

#include "ops/library.h"

namespace lazy::ops {

namespace {

std::string read_environment() {
  const char* value = std::getenv("LAZY_KERNEL");
  const std::string name = value && *value ? value : "automatic";
  TORCH_CHECK(name == "automatic" || name == "one_by_one" || name == "reference" || name == "plain" ||
                  name == "portable" || name == "hopper",
              "LAZY_KERNEL: expected automatic, one_by_one, reference, plain, portable or hopper, received \"", name,
              "\"");
  return name;
}
const std::string& environment() {
  static const std::string name = read_environment();
  return name;
}

at::Tensor exact(const at::Tensor& t) { return t.to(at::kCPU, at::kDouble); }
OptionalTensor exact(const OptionalTensor& t) { return given(t) ? OptionalTensor(exact(*t)) : OptionalTensor(); }

// Converts t to dtype `type` and to the device of q.
at::Tensor like(const at::Tensor& t, const at::Tensor& q, at::ScalarType type) { return t.to(q.device(), type); }

}  // namespace

const std::string& forced_kernel() {
  static const std::string name = environment() == "one_by_one" ? "automatic" : environment();
  return name;
}
bool one_by_one_is_forced() { return environment() != "automatic"; }

bool reference_is_forced(const AttentionArguments& a) {
  return forced_kernel() == "reference" && !(a.q.is_cpu() && a.q.scalar_type() == at::kDouble);
}

AttentionOutputs attention_by_reference(LAZY_ATTENTION_PARAMETERS) {
  auto [out, lse, stats] = attention_cpu(exact(q), exact(k), exact(v), exact(distance_bias), exact(tau), exact(sink),
                                         exact(alibi_slopes), normalizer, offset, sigmoid_bias, scale, softcap, causal,
                                         window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
  const auto parameter = accumulate_type(q.scalar_type());
  return {like(out, q, q.scalar_type()), like(lse, q, parameter), like(stats, q, parameter)};
}

BackwardOutputs attention_backward_by_reference(LAZY_ATTENTION_BACKWARD_PARAMETERS) {
  auto [d_q, d_k, d_v, d_bias, d_tau, d_sink, d_slopes] = attention_backward_cpu(
      exact(d_out), exact(out), exact(lse), exact(q), exact(k), exact(v), exact(distance_bias), exact(tau), exact(sink),
      exact(alibi_slopes), normalizer, offset, sigmoid_bias, scale, softcap, causal, window, cu_seqlens_q, cu_seqlens_k,
      deterministic, output_mask, OptionalTensor());
  const auto type = q.scalar_type(), parameter = accumulate_type(type);
  return {like(d_q, q, type),          like(d_k, q, type),        like(d_v, q, type),
          like(d_bias, q, parameter),  like(d_tau, q, parameter), like(d_sink, q, parameter),
          like(d_slopes, q, parameter)};
}

AttentionOutputs decode_by_reference(LAZY_DECODE_PARAMETERS) {
  auto here = [](const OptionalTensor& t) { return given(t) ? OptionalTensor(t->cpu()) : OptionalTensor(); };
  auto [out, lse, stats] =
      decode_cpu(exact(q), exact(k_cache), exact(v_cache), cache_lengths.cpu(), exact(distance_bias), exact(tau),
                 exact(sink), here(block_table), here(visible_count), exact(alibi_slopes), normalizer, offset,
                 sigmoid_bias, scale, softcap, causal, window, return_stats, invariant);
  const auto parameter = accumulate_type(q.scalar_type());
  return {like(out, q, q.scalar_type()), like(lse, q, parameter), like(stats, q, parameter)};
}

}  // namespace lazy::ops
