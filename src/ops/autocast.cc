// Autocast kernels of the operators. They cast q, k and v, and the operands of the output projection, to the autocast
// dtype, as PyTorch does for scaled_dot_product_attention and for linear layers. The per-head parameters remain fp32.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/decode_kernels.h"
#include "ops/linear_cross_entropy.h"

namespace lazy::ops {

namespace {

template <at::DeviceType device>
at::Tensor cast(const at::Tensor& t) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

template <at::DeviceType device>
AttentionOutputs attention_autocast(LAZY_ATTENTION_PARAMETERS) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy::attention", "")
                             .typed<AttentionOutputs(LAZY_ATTENTION_PARAMETERS)>();
  return op.call(cast<device>(q), cast<device>(k), cast<device>(v), distance_bias, tau, sink, alibi_slopes, normalizer,
                 offset, sigmoid_bias, scale, softcap, causal, window, cu_seqlens_q, cu_seqlens_k, return_stats,
                 deterministic);
}

template <at::DeviceType device>
AttentionOutputs decode_autocast(LAZY_DECODE_PARAMETERS) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy::decode", "")
                             .typed<AttentionOutputs(LAZY_DECODE_PARAMETERS)>();
  return op.call(cast<device>(q), cast<device>(k_cache), cast<device>(v_cache), cache_lengths, distance_bias, tau, sink,
                 block_table, visible_count, alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap, causal,
                 window, return_stats, invariant);
}

template <at::DeviceType device>
std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_autocast(const at::Tensor& hidden,
                                                                      const at::Tensor& weight,
                                                                      const at::Tensor& labels, int64_t ignore_index) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  return linear_cross_entropy(cast<device>(hidden), cast<device>(weight), labels, ignore_index);
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, AutocastCPU, m) {
  m.impl("attention", attention_autocast<at::kCPU>);
  m.impl("decode", decode_autocast<at::kCPU>);
  m.impl("linear_cross_entropy", cross_entropy_autocast<at::kCPU>);
}
TORCH_LIBRARY_IMPL(lazy, AutocastCUDA, m) {
  m.impl("attention", attention_autocast<at::kCUDA>);
  m.impl("decode", decode_autocast<at::kCUDA>);
  m.impl("linear_cross_entropy", cross_entropy_autocast<at::kCUDA>);
}

}  // namespace lazy::ops
