#include "ops/step_layers.h"

#include <algorithm>

#include "ops/forced_kernel.h"
#include "ops/step_kernels.h"

namespace lazy::ops {

std::optional<std::pair<at::Tensor, at::Tensor>> step_layers(const StepLayers& in) {
  if (!in.x.is_cuda() || !step_kernels() || one_by_one_is_forced() || in.layers.empty()) return {};
  const StepLayer& first = in.layers.front();
  // One set of numbers serves all layers.
  const auto alike = [&](const StepLayer& l) {
    const auto same_parameter = [](const at::Tensor& a, const at::Tensor& b) {
      return a.defined() == b.defined() && (!a.defined() || a.sizes() == b.sizes());
    };
    const auto numbers = [](const AttentionOptions& o) {
      return std::tie(o.normalizer, o.offset, o.sigmoid_bias, o.scale, o.causal, o.window);
    };
    const AttentionTerms &a = l.attention, &b = first.attention;
    const RopeOptions &r = l.rope, &s = first.rope;
    const auto key = [](const StepLayer& x) {
      return rope_key({x.rope_base, 0, x.rope.rotary_dim, x.rope.interleaved, x.rope.scaling});
    };
    return l.heads == first.heads && l.kv_heads == first.kv_heads && numbers(a.options) == numbers(b.options) &&
           same_parameter(a.distance_bias, b.distance_bias) && same_parameter(a.tau, b.tau) &&
           same_parameter(a.options.sink, b.options.sink) &&
           same_parameter(a.options.alibi_slopes, b.options.alibi_slopes) && key(l) == key(first) &&
           r.interleaved == s.interleaved && l.keys.sizes() == first.keys.sizes() &&
           l.qkv.sizes() == first.qkv.sizes() && l.gate_up.sizes() == first.gate_up.sizes();
  };
  if (!std::all_of(in.layers.begin(), in.layers.end(), alike)) return {};
  return step_kernels()->step_layers(in);
}

}  // namespace lazy::ops
