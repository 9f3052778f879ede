// lazy::decode for the C++ program: the Meta kernel, which computes only shapes, an error for gradients, and the entry
// point. The Python package uses python/lazy_attention/_registration.py instead.
#include "ops/autograd.h"
#include "ops/decode.h"
#include "ops/decode_kernels.h"

namespace lazy::ops {

#define LAZY_EXPECT_DECODE(condition, ...) TORCH_CHECK(condition, "lazy::decode: expected ", __VA_ARGS__)

static AttentionOutputs decode_meta(LAZY_DECODE_PARAMETERS) {
  const OptionalTensor none;
  const AttentionArguments a LAZY_DECODE_PACK(none);
  check_decode(a, cache_lengths, block_table, visible_count);
  return empty_outputs(a, return_stats);
}

TORCH_LIBRARY_IMPL(lazy, Meta, m) { m.impl("decode", decode_meta); }
// lazy::decode has no derivative: computing a gradient raises an error.
TORCH_LIBRARY_IMPL(lazy, Autograd, m) { m.impl("decode", torch::autograd::autogradNotImplementedFallback()); }

AttentionOutputs decode(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                        const at::Tensor& cache_lengths, const at::Tensor& distance_bias, const at::Tensor& tau,
                        const AttentionOptions& options, const at::Tensor& block_table, const at::Tensor& visible_count,
                        bool invariant) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy::decode", "")
                             .typed<AttentionOutputs(LAZY_DECODE_PARAMETERS)>();
  LAZY_EXPECT_DECODE(!options.cu_seqlens_q.defined() && !options.cu_seqlens_k.defined(),
                     "cu_seqlens_q and cu_seqlens_k to be undefined, received a tensor");
  auto optional = [](const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : OptionalTensor(); };
  return op.call(q, k_cache, v_cache, cache_lengths, optional(distance_bias), optional(tau), optional(options.sink),
                 optional(block_table), optional(visible_count), optional(options.alibi_slopes), options.normalizer,
                 options.offset, options.sigmoid_bias, options.scale, options.softcap, options.causal, options.window,
                 options.stats_level(), invariant);
}

}  // namespace lazy::ops
