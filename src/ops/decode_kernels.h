// The C++ signature of lazy::decode, in the schema's order, and its checks.
#pragma once
#include "lazy/decode.h"
#include "ops/attention_arguments.h"

namespace lazy::ops {

#define LAZY_DECODE_PARAMETERS                                                                                       \
  const at::Tensor &q, const at::Tensor &k_cache, const at::Tensor &v_cache, const at::Tensor &cache_lengths,        \
      const OptionalTensor &distance_bias, const OptionalTensor &tau, const OptionalTensor &sink,                    \
      const OptionalTensor &block_table, const OptionalTensor &visible_count, const OptionalTensor &alibi_slopes,    \
      std::string_view normalizer, std::string_view offset, std::optional<double> sigmoid_bias,                      \
      std::optional<double> scale, std::optional<double> softcap, bool causal, int64_t window, int64_t return_stats, \
      bool invariant
// The part that lazy::attention has too. `none` is an OptionalTensor that lives as long.
#define LAZY_DECODE_PACK(none)                                                                                     \
  {                                                                                                                \
    q, k_cache, v_cache, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap, \
        causal, window, none, none, false, "decode", given(block_table)                                            \
  }

// Ranks, types, devices and sizes, without looking at data. Throws "lazy::decode: expected ..., received ...".
void check_decode(const AttentionArguments& a, const at::Tensor& cache_lengths, const OptionalTensor& block_table,
                  const OptionalTensor& visible_count);

// The implementation for tensors on the CPU.
AttentionOutputs decode_cpu(LAZY_DECODE_PARAMETERS);

// cache_lengths, block_table and visible_count for the kernels: contiguous int64 on their own device; undefined when
// not given.
struct DecodeNumbers {
  at::Tensor lengths, table, counts;
  DecodeNumbers(const at::Tensor& cache_lengths, const OptionalTensor& block_table,
                const OptionalTensor& visible_count);

  // `k_cache` is pages where there is a table.
  template <typename Real>
  void set(kernels::Decode<Real>& d, const at::Tensor& k_cache) const {
    d.lengths = lengths.const_data_ptr<int64_t>();
    if (table.defined()) {
      d.block_table = table.const_data_ptr<int64_t>();
      d.table_width = table.size(1);
      d.page_size = k_cache.size(1);
    }
    if (counts.defined()) d.visible_counts = counts.const_data_ptr<int64_t>();
  }
};

}  // namespace lazy::ops
