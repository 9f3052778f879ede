// lazy::decode on the CPU: looks at lengths and pages, then points the kernel at the tensors. float64 goes to the reference.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "lazy/decode.h"
#include "ops/attention_pointers.h"
#include "ops/decode_kernels.h"
#include "ops/forced_kernel.h"

namespace lazy::ops {

#define LAZY_EXPECT(condition, ...) TORCH_CHECK(condition, "lazy::decode: expected ", __VA_ARGS__)

namespace {

at::Tensor integers(const at::Tensor& t) { return t.to(at::kLong).contiguous(); }

void check_values(const AttentionArguments& a, const at::Tensor& lengths, const at::Tensor& table, const at::Tensor& counts) {
  const int64_t rows = a.q.size(1), page = table.defined() ? a.k.size(1) : 1;
  const int64_t capacity = table.defined() ? table.size(1) * page : a.k.size(1);
  for (int64_t b = 0; b < lengths.numel(); ++b) {
    const int64_t length = lengths.const_data_ptr<int64_t>()[b];
    LAZY_EXPECT(length >= 0 && length <= capacity, "cache_lengths from 0 to the capacity of ", capacity, ", received cache_lengths[",
                b, "] = ", length);
    if (counts.defined()) {
      const int64_t count = counts.const_data_ptr<int64_t>()[b];
      LAZY_EXPECT(count >= rows, "visible_count of at least q's rows, ", rows, ", received visible_count[", b, "] = ", count);
    }
    if (!table.defined()) continue;
    const int64_t* pages = table.const_data_ptr<int64_t>() + b * table.size(1);
    for (int64_t n = 0; n < (length + page - 1) / page; ++n) {
      LAZY_EXPECT(pages[n] >= 0 && pages[n] < a.k.size(0), "block_table from 0 to ", a.k.size(0) - 1, ", received block_table[", b,
                  "][", n, "] = ", pages[n]);
    }
  }
}

void run(const kernels::Problem& p, const kernels::Decode<float>& d) { kernels::decode(p, d); }
void run(const kernels::Problem& p, const kernels::Decode<double>& d) { kernels::reference::decode(p, d); }

template <typename Real>
void decode(const kernels::Problem& p, const AttentionArguments& a, const at::Tensor& lengths, const at::Tensor& table,
            const at::Tensor& counts, AttentionOutputs& outputs) {
  auto& [out, lse, stats] = outputs;
  InputPointers<Real, kernels::Decode<Real>> filled(a);
  auto& d = filled.arguments;
  d.lengths = lengths.const_data_ptr<int64_t>();
  if (table.defined()) {
    d.block_table = table.const_data_ptr<int64_t>();
    d.table_width = table.size(1);
    d.page_size = a.k.size(1);
  }
  if (counts.defined()) d.visible_counts = counts.const_data_ptr<int64_t>();
  d.out = view(out);
  d.lse = wanted<Real>(lse);
  d.stats = wanted<Real>(stats);
  run(p, d);
}

AttentionOutputs decode_cpu(LAZY_DECODE_PARAMETERS) {
  const OptionalTensor none;
  const AttentionArguments a LAZY_DECODE_PACK(none);
  check_decode(a, cache_lengths, block_table, visible_count);
  if (reference_is_forced(a)) {
    return decode_by_reference(q, k_cache, v_cache, cache_lengths, distance_bias, tau, sink, block_table, visible_count,
                               alibi_slopes, normalizer, offset, sigmoid_bias, scale, causal, window, return_stats);
  }
  const at::Tensor lengths = integers(cache_lengths), table = given(block_table) ? integers(*block_table) : at::Tensor(),
                   counts = given(visible_count) ? integers(*visible_count) : at::Tensor();
  check_values(a, lengths, table, counts);
  at::Tensor cu_q, cu_k;
  kernels::Problem p = attention_problem(a, cu_q, cu_k);
  p.threads = at::get_num_threads();
  AttentionOutputs outputs = empty_outputs(a, return_stats);
  if (p.dtype == kernels::DType::f64) {
    decode<double>(p, a, lengths, table, counts, outputs);
  } else {
    const std::string unmet = kernels::unmet_condition(p);
    LAZY_EXPECT(unmet.empty(), unmet);
    decode<float>(p, a, lengths, table, counts, outputs);
  }
  return outputs;
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, CPU, m) { m.impl("decode", decode_cpu); }

}  // namespace lazy::ops
