// lazy::decode: schema, checks and the CPU implementation.
#include "ops/decode.h"

#include <atomic>
#include <numeric>
#include <vector>

#include "ops/attention_pointers.h"
#include "ops/decode_kernels.h"
#include "ops/forced_kernel.h"
#include "ops/library.h"

namespace lazy::ops {

#define LAZY_EXPECT_DECODE(condition, ...) TORCH_CHECK(condition, "lazy::decode: expected ", __VA_ARGS__)

namespace {

std::atomic<ValueRowCount*> living_count = nullptr;

void check_integers(const AttentionArguments& a, const at::Tensor& t, const char* name, int64_t rank,
                    const char* shape) {
  LAZY_EXPECT_DECODE(t.dim() == rank && t.sym_size(0) == a.q.sym_size(0) &&
                         (t.scalar_type() == at::kInt || t.scalar_type() == at::kLong),
                     name, " of shape ", shape, " with batch ", a.q.dim() > 0 ? a.q.sym_size(0) : c10::SymInt(0),
                     " and type int32 or int64, received ", t.sym_sizes(), " of ", t.scalar_type());
  LAZY_EXPECT_DECODE(t.device() == a.q.device(), name, " on ", a.q.device(), " like q, received ", t.device());
}

}  // namespace

void check_decode(const AttentionArguments& a, const at::Tensor& cache_lengths, const OptionalTensor& block_table,
                  const OptionalTensor& visible_count) {
  check_attention(a);
  check_integers(a, cache_lengths, "cache_lengths", 1, "(batch)");
  if (given(visible_count)) check_integers(a, *visible_count, "visible_count", 1, "(batch)");
  if (given(block_table)) {
    check_integers(a, *block_table, "block_table", 2, "(batch, pages)");
    LAZY_EXPECT_DECODE(a.k.sym_size(1) >= 1, "pages of at least one token, received k_cache of ", a.k.sym_sizes());
  }
}

static at::Tensor integers(const OptionalTensor& t) { return given(t) ? t->to(at::kLong).contiguous() : at::Tensor(); }

DecodeNumbers::DecodeNumbers(const at::Tensor& cache_lengths, const OptionalTensor& block_table,
                             const OptionalTensor& visible_count)
    : lengths(integers(cache_lengths)), table(integers(block_table)), counts(integers(visible_count)) {}

LAZY_SCHEMAS(m) {
  m.def(
      "decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor cache_lengths, Tensor? distance_bias=None, Tensor? "
      "tau=None, "
      "Tensor? sink=None, *, Tensor? block_table=None, Tensor? visible_count=None, Tensor? alibi_slopes=None, "
      "str normalizer=\"elastic\", str offset=\"per_visible\", float? sigmoid_bias=None, float? scale=None, float? "
      "softcap=None, bool "
      "causal=True, "
      "int window=-1, int return_stats=0, bool invariant=False) -> (Tensor out, Tensor lse, Tensor stats)");
}

// The CPU implementation checks lengths and pages and then runs the kernel. float64 uses the reference implementation.

namespace {

void check_values(const AttentionArguments& a, const DecodeNumbers& numbers) {
  const auto& [lengths, table, counts] = numbers;
  const int64_t rows = a.q.size(1), page = table.defined() ? a.k.size(1) : 1;
  const int64_t capacity = table.defined() ? table.size(1) * page : a.k.size(1);
  for (int64_t b = 0; b < lengths.numel(); ++b) {
    const int64_t length = lengths.const_data_ptr<int64_t>()[b];
    LAZY_EXPECT_DECODE(length >= 0 && length <= capacity, "cache_lengths from 0 to the capacity of ", capacity,
                       ", received cache_lengths[", b, "] = ", length);
    if (counts.defined()) {
      const int64_t count = counts.const_data_ptr<int64_t>()[b];
      LAZY_EXPECT_DECODE(count >= rows, "visible_count of at least the number of query rows, ", rows,
                         ", received visible_count[", b, "] = ", count);
    }
    if (!table.defined()) continue;
    const int64_t* pages = table.const_data_ptr<int64_t>() + b * table.size(1);
    for (int64_t n = 0; n < (length + page - 1) / page; ++n) {
      LAZY_EXPECT_DECODE(pages[n] >= 0 && pages[n] < a.k.size(0), "block_table from 0 to ", a.k.size(0) - 1,
                         ", received block_table[", b, "][", n, "] = ", pages[n]);
    }
  }
}

void run(const kernels::Problem& p, const kernels::Decode<float>& d) { kernels::decode(p, d); }
void run(const kernels::Problem& p, const kernels::Decode<double>& d) { kernels::reference::decode(p, d); }

template <typename Real>
void decode(const kernels::Problem& p, const AttentionArguments& a, const DecodeNumbers& numbers,
            AttentionOutputs& outputs) {
  auto& [out, lse, stats] = outputs;
  InputPointers<Real, kernels::Decode<Real>> filled(a);
  numbers.set(filled.arguments, a.k);
  set_outputs<Real>(filled.arguments, out, lse, stats);
  ValueRowCount* count = ValueRowCount::current();
  std::vector<int64_t> rows(count ? static_cast<size_t>(p.batch * p.kv_heads) : 0);
  if (count) filled.arguments.value_rows = rows.data();
  run(p, filled.arguments);
  if (count) count->add(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
}

}  // namespace

ValueRowCount::ValueRowCount() {
  ValueRowCount* none = nullptr;
  TORCH_CHECK(living_count.compare_exchange_strong(none, this),
              "ValueRowCount: expected no other ValueRowCount object, found one");
}
ValueRowCount::~ValueRowCount() { living_count = nullptr; }
ValueRowCount* ValueRowCount::current() { return living_count; }

AttentionOutputs decode_cpu(LAZY_DECODE_PARAMETERS) {
  const OptionalTensor none;
  const AttentionArguments a LAZY_DECODE_PACK(none);
  check_decode(a, cache_lengths, block_table, visible_count);
  if (reference_is_forced(a)) {
    return decode_by_reference(q, k_cache, v_cache, cache_lengths, distance_bias, tau, sink, block_table, visible_count,
                               alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap, causal, window,
                               return_stats, invariant);
  }
  const DecodeNumbers numbers(cache_lengths, block_table, visible_count);
  check_values(a, numbers);
  at::Tensor cu_q, cu_k;
  kernels::Problem p = attention_problem(a, cu_q, cu_k);
  p.threads = at::get_num_threads();
  AttentionOutputs outputs = empty_outputs(a, return_stats);
  if (p.dtype == kernels::DType::f64) {
    LAZY_EXPECT_DECODE(!ValueRowCount::current(),
                       "float32, bfloat16 or float16 while a ValueRowCount exists, received float64");
    decode<double>(p, a, numbers, outputs);
  } else {
    const std::string unmet = kernels::unmet_condition(p);
    LAZY_EXPECT_DECODE(unmet.empty(), unmet);
    decode<float>(p, a, numbers, outputs);
  }
  return outputs;
}

LAZY_KERNELS(CPU, m) { m.impl("decode", LAZY_KERNEL(decode_cpu)); }

}  // namespace lazy::ops
