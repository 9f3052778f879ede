#include "ops/fused_decode_layers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

#include "ops/forced_kernel.h"
#include "ops/step_kernels.h"

namespace lazy::ops {

at::Tensor SyncFlags::of(int64_t count, at::Device device) {
  at::Tensor& words = by_count_[count];
  if (!words.defined()) words = at::zeros({count}, at::TensorOptions().dtype(at::kLong).device(device));
  return words;
}

std::optional<at::Tensor> fused_decode_layers(const FusedDecodeLayers& in) {
  if (!in.x.is_cuda() || !step_kernels() || one_by_one_is_forced() || in.layers.empty()) return {};
  const FusedDecodeLayer& first = in.layers.front();
  // The kernel has only one set of shapes and parameters, so all layers must have the same ones as the first layer.
  const auto alike = [&](const FusedDecodeLayer& l) {
    const auto same_parameter = [](const at::Tensor& a, const at::Tensor& b) {
      return a.defined() == b.defined() && (!a.defined() || a.sizes() == b.sizes());
    };
    const auto numbers = [](const AttentionOptions& o) {
      return std::tie(o.normalizer, o.offset, o.sigmoid_bias, o.scale, o.softcap, o.causal, o.window);
    };
    const auto rotation = [](const PagePlaces& p) {
      return rope_key({p.rope_base, 0, p.rope.rotary_dim, p.rope.interleaved, p.rope.scaling});
    };
    const AttentionTerms &a = l.attention, &b = first.attention;
    return l.heads == first.heads && numbers(a.options) == numbers(b.options) &&
           same_parameter(a.distance_bias, b.distance_bias) && same_parameter(a.tau, b.tau) &&
           same_parameter(a.options.sink, b.options.sink) &&
           same_parameter(a.options.alibi_slopes, b.options.alibi_slopes) &&
           rotation(l.pages) == rotation(first.pages) && l.pages.rope.interleaved == first.pages.rope.interleaved &&
           l.pages.keys.sizes() == first.pages.keys.sizes() && l.qkv.sizes() == first.qkv.sizes() &&
           l.gate_up.sizes() == first.gate_up.sizes();
  };
  if (!std::all_of(in.layers.begin(), in.layers.end(), alike)) return {};
  return step_kernels()->fused_decode_layers(in);
}

}  // namespace lazy::ops
