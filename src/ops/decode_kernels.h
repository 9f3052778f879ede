// The C++ signature of lazy::decode, in schema order, and its checks.
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
// Initializer for the AttentionArguments of a lazy::decode call. `none` is an empty OptionalTensor that must outlive
// the AttentionArguments.
#define LAZY_DECODE_PACK(none)                                                                                     \
  {                                                                                                                \
    q, k_cache, v_cache, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap, \
        causal, window, none, none, false, "decode", given(block_table)                                            \
  }

// Checks ranks, dtypes, devices and sizes without reading data. Throws "lazy::decode: expected ..., received ...".
void check_decode(const AttentionArguments& a, const at::Tensor& cache_lengths, const OptionalTensor& block_table,
                  const OptionalTensor& visible_count);

AttentionOutputs decode_cpu(LAZY_DECODE_PARAMETERS);

// The arguments cache_lengths, block_table and visible_count in the form that the kernels need: contiguous int64
// tensors on the same device, undefined if not given.
struct DecodeNumbers {
  at::Tensor lengths, table, counts;
  DecodeNumbers(const at::Tensor& cache_lengths, const OptionalTensor& block_table,
                const OptionalTensor& visible_count);

  // Sets the pointers to these tensors in d. If there is a block table, `k_cache` is the page pool.
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
