// Driver of the backward on CPUs. The row blocks of a kv head are divided into several parts, called splits. Every pair
// (kv head, split) accumulates its gradients in a separate set of sums, and these sums are then added in a fixed order.
// The code does not use atomics, and the number of splits depends only on the problem, so the results do not depend on
// the number of threads.
#include <algorithm>

#include "attention/cpu/block.h"
#include "attention/cpu/convert.h"
#include "attention/cpu/schedule.h"

namespace lazy::kernels {

using namespace cpu;

namespace {

constexpr int64_t kPackKeys = 8 * kKeyChunk;

struct Sizes {
  size_t k_stride, v_stride, bias;
  int64_t group_heads, splits;
  size_t keys(const Unit& unit) const { return round_up(unit.sequence.k_length, kKeyChunk); }
  size_t packed(const Problem& p, const Unit& u) const {
    return aligned_floats(keys(u) * p.head_dim) + aligned_floats(keys(u) * p.value_dim) + keys(u) * k_stride;
  }
  size_t slab(const Unit& u) const { return keys(u) * (k_stride + v_stride) + group_heads * bias; }
  size_t total(const Problem& p, const Unit& u) const { return packed(p, u) + splits * slab(u); }
};

// Returns the number of splits (at most 16) into which the row blocks of each unit (one kv head of one sequence) are
// divided. It is chosen so that there are at least 64 pairs (unit, split) to distribute over the cores, unless a pair
// would then have fewer than 1024 rows. With fewer rows, adding the separate sums of the pairs would take too much
// time.
int64_t split_count(const Problem& p, const WorkSchedule& schedule) {
  int64_t longest = 1;
  for (const Unit& unit : schedule.units) longest = std::max(longest, unit.sequence.q_length);
  const int64_t units = std::max<int64_t>(1, static_cast<int64_t>(schedule.units.size()));
  return std::clamp<int64_t>(std::min((63 + units) / units, longest * (p.heads / p.kv_heads) / 1024), 1, 16);
}

// Gradients of the per-head parameters, summed in order of sequence and split.
struct ParameterSums {
  std::vector<double> bias;     // shape (heads, bias_window)
  std::vector<double> scalars;  // shape (heads, 3): tau, sink, alibi slope
};

void write_parameters(const Problem& p, const Backward<float>& a, const ParameterSums& sums) {
  for (int64_t h = 0; h < p.heads; ++h) {
    if (a.d_tau) a.d_tau[h] = static_cast<float>(sums.scalars[3 * h]);
    if (a.d_sink) a.d_sink[h] = static_cast<float>(sums.scalars[3 * h + 1]);
    if (a.d_alibi_slopes) a.d_alibi_slopes[h] = static_cast<float>(sums.scalars[3 * h + 2]);
  }
  if (!a.d_distance_bias) return;
  for (size_t n = 0; n < sums.bias.size(); ++n) a.d_distance_bias[n] = static_cast<float>(sums.bias[n]);
}

// Writes zero gradients for sequences that have queries but no keys, or keys but no queries.
void write_empty(const Problem& p, const Backward<float>& a) {
  for (int64_t n = 0; n < sequence_count(p); ++n) {
    const Sequence s = sequence(p, n);
    if (s.q_length > 0 && s.k_length > 0) continue;
    for (int64_t row = 0; row < s.q_length && a.d_q.data; ++row) {
      for (int64_t h = 0; h < p.heads; ++h) zero_row(p.dtype, a.d_q, s.batch, s.q_begin + row, h, p.head_dim);
    }
    for (int64_t j = 0; j < s.k_length; ++j) {
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        if (a.d_k.data) zero_row(p.dtype, a.d_k, s.batch, s.k_begin + j, h, p.head_dim);
        if (a.d_v.data) zero_row(p.dtype, a.d_v, s.batch, s.k_begin + j, h, p.value_dim);
      }
    }
  }
}

struct BackwardItem {
  Unit* unit;
  int64_t split;
  float* slab;
  std::vector<double> scalars;  // shape (heads of the group, 3): tau, sink, alibi slope
};

void run_item(const Problem& p, const Backward<float>& a, const WorkSchedule& schedule, const Sizes& sizes,
              const std::vector<float>& bias, BackwardItem& item, float* scratch) {
  const Unit& unit = *item.unit;
  std::fill_n(item.slab, sizes.slab(unit), 0.0f);
  item.scalars.assign(3 * sizes.group_heads, 0.0);
  GradientSlab slab;
  slab.d_k = item.slab;
  slab.d_v = slab.d_k + sizes.keys(unit) * sizes.k_stride;
  float* bias_sums = slab.d_v + sizes.keys(unit) * sizes.v_stride;
  int64_t index = 0;
  for (int64_t h = 0; h < sizes.group_heads; ++h) {
    for (int64_t row = 0; row < unit.sequence.q_length; row += schedule.rows, ++index) {
      if (index % sizes.splits != item.split) continue;
      const int64_t head = unit.kv_head * sizes.group_heads + h;
      slab.d_symmetric_bias = a.d_distance_bias && sizes.bias > 0 ? bias_sums + h * sizes.bias : nullptr;
      slab.d_scalars = item.scalars.data() + 3 * h;
      backward_block(p, a, row_block(p, unit.sequence, head, row, schedule.rows),
                     head_parameters(p, bias, a.tau, a.sink, a.alibi_slopes, head), unit.packed, slab, scratch);
    }
  }
}

void store_keys(const Problem& p, const Backward<float>& a, const Sizes& sizes, const Unit& unit,
                const BackwardItem* items, int64_t begin) {
  const int64_t end = std::min(begin + kPackKeys, unit.sequence.k_length);
  std::vector<const float*> slabs;
  for (int64_t n = 0; n < sizes.splits; ++n) slabs.push_back(items[n].slab);
  const Sequence& s = unit.sequence;
  if (a.d_k.data) {
    store_sum(p.dtype, slabs.data(), slabs.size(), sizes.k_stride, begin, end, p.head_dim, static_cast<float>(p.scale),
              a.d_k, s.batch, s.k_begin, unit.kv_head);
  }
  for (const float*& slab : slabs) slab += sizes.keys(unit) * sizes.k_stride;
  if (a.d_v.data) {
    store_sum(p.dtype, slabs.data(), slabs.size(), sizes.v_stride, begin, end, p.value_dim, 1.0f, a.d_v, s.batch,
              s.k_begin, unit.kv_head);
  }
}

void add_parameters(const Problem& p, const Sizes& sizes, const BackwardItem& item, ParameterSums& sums) {
  const Unit& unit = *item.unit;
  const float* bias = item.slab + sizes.keys(unit) * (sizes.k_stride + sizes.v_stride);
  for (int64_t h = 0; h < sizes.group_heads; ++h) {
    const int64_t head = unit.kv_head * sizes.group_heads + h;
    for (int n = 0; n < 3; ++n) sums.scalars[3 * head + n] += item.scalars[3 * h + n];
    const float* center = bias + h * sizes.bias + p.bias_window - 1;
    for (int64_t d = 0; d < p.bias_window; ++d) {
      sums.bias[head * p.bias_window + d] += d == 0 ? center[0] : static_cast<double>(center[d]) + center[-d];
    }
  }
}

}  // namespace

void backward(const Problem& p, const Backward<float>& a) {
  require_served(p);
  write_empty(p, a);
  WorkSchedule schedule = make_schedule(p, 2);
  const std::vector<float> bias = symmetric_bias(p, a.distance_bias);
  const Sizes sizes{round_up(p.head_dim, 16), round_up(p.value_dim, 16), symmetric_bias_size(p.bias_window),
                    p.heads / p.kv_heads, split_count(p, schedule)};
  ParameterSums sums{std::vector<double>(p.heads * p.bias_window), std::vector<double>(3 * p.heads)};
  thread_local Scratch shared_memory;
  size_t first = 0;
  for (const size_t last : group_ends(schedule, [&](const Unit& unit) { return sizes.total(p, unit); })) {
    size_t total = 0;
    for (size_t n = first; n < last; ++n) total += sizes.total(p, schedule.units[n]);
    float* memory = shared_memory.get(total);
    std::vector<std::pair<size_t, int64_t>> chunks;  // pairs (index of a unit, first key of a chunk) to pack
    std::vector<BackwardItem> items;
    for (size_t n = first; n < last; ++n) {
      Unit& unit = schedule.units[n];
      float* at = memory;
      unit.packed.keys = sizes.keys(unit);
      unit.packed.k_panels = at;
      unit.packed.v_panels = at += aligned_floats(sizes.keys(unit) * p.head_dim);
      unit.packed.k_rows = at += aligned_floats(sizes.keys(unit) * p.value_dim);
      unit.packed.k_stride = sizes.k_stride;
      unit.packed.v_stride = sizes.v_stride;
      for (int64_t split = 0; split < sizes.splits; ++split) {
        items.push_back({&unit, split, memory + sizes.packed(p, unit) + split * sizes.slab(unit), {}});
      }
      memory += sizes.total(p, unit);
      for (int64_t j = 0; j < unit.sequence.k_length; j += kPackKeys) chunks.emplace_back(n, j);
    }
#pragma omp parallel num_threads(schedule.threads)
    {
      thread_local Scratch own;
      float* scratch = own.get(backward_scratch(p, schedule.rows, schedule.widest));
#pragma omp for schedule(dynamic)
      for (size_t n = 0; n < chunks.size(); ++n) {
        const Unit& unit = schedule.units[chunks[n].first];
        const int64_t begin = chunks[n].second, end = std::min(begin + kPackKeys, unit.sequence.k_length);
        pack_keys(p, a.k, a.v, unit.sequence, unit.kv_head, begin, end, unit.packed);
      }
#pragma omp for schedule(dynamic)
      for (size_t n = 0; n < items.size(); ++n) run_item(p, a, schedule, sizes, bias, items[n], scratch);
#pragma omp for schedule(dynamic)
      for (size_t n = 0; n < chunks.size(); ++n) {
        const size_t unit = chunks[n].first;
        store_keys(p, a, sizes, schedule.units[unit], &items[(unit - first) * sizes.splits], chunks[n].second);
      }
      own.trim();
    }
    for (const BackwardItem& item : items) add_parameters(p, sizes, item, sums);
    first = last;
  }
  shared_memory.trim();
  write_parameters(p, a, sums);
}

}  // namespace lazy::kernels
