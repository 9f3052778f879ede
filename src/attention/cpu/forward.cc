// Driver of the forward on CPUs. It packs keys and values once per kv head and then processes row blocks, beginning
// with the row blocks that see the most keys.
#include <algorithm>
#include <limits>

#include "attention/cpu/block.h"
#include "attention/cpu/convert.h"
#include "attention/cpu/schedule.h"

namespace lazy::kernels {

using namespace cpu;

namespace {

size_t unit_floats(const Problem& p, const Unit& unit) {
  const size_t keys = round_up(unit.sequence.k_length, kKeyChunk);
  return aligned_floats(keys * p.head_dim) + keys * round_up(p.value_dim, 16);
}

void place(const Problem& p, Unit& unit, float* memory) {
  const size_t keys = round_up(unit.sequence.k_length, kKeyChunk);
  unit.packed.keys = keys;
  unit.packed.k_panels = memory;
  unit.packed.v_rows = memory + aligned_floats(keys * p.head_dim);
  unit.packed.k_stride = round_up(p.head_dim, 16);
  unit.packed.v_stride = round_up(p.value_dim, 16);
}

// Writes the outputs of a sequence without keys. No unit of the schedule processes such a sequence.
void write_empty(const Problem& p, const Forward<float>& a, const Sequence& s) {
  for (int64_t head = 0; head < p.heads; ++head) {
    for (int64_t row = 0; row < s.q_length; ++row) {
      zero_row(p.dtype, a.out, s.batch, s.q_begin + row, head, p.value_dim);
      const int64_t index = (s.batch * p.heads + head) * p.q_length + s.q_begin + row;
      const int64_t part = p.batch * p.heads * p.q_length;
      if (a.lse) a.lse[index] = -std::numeric_limits<float>::infinity();
      if (a.stats) {
        a.stats[index] = a.stats[2 * part + index] = 0;
        a.stats[part + index] = 1;
      }
      if (a.score_stats) {
        a.score_stats[index] = -std::numeric_limits<float>::infinity();
        a.score_stats[part + index] = 0;
      }
    }
  }
}

}  // namespace

void forward(const Problem& p, const Forward<float>& a) {
  require_served(p);
  for (int64_t n = 0; n < sequence_count(p); ++n) {
    const Sequence s = sequence(p, n);
    if (s.k_length == 0) write_empty(p, a, s);
  }
  WorkSchedule schedule = make_schedule(p, 1);
  const std::vector<float> bias = symmetric_bias(p, a.distance_bias);
  thread_local Scratch packed_memory;
  const int64_t group_heads = p.heads / p.kv_heads;
  size_t first = 0;
  for (const size_t last : group_ends(schedule, [&](const Unit& unit) { return unit_floats(p, unit); })) {
    size_t total = 0;
    for (size_t n = first; n < last; ++n) total += unit_floats(p, schedule.units[n]);
    float* memory = packed_memory.get(total);
    std::vector<std::pair<size_t, int64_t>> chunks;  // pairs (index of a unit, first key of a chunk) to pack
    struct ForwardTask {
      int64_t cost;
      size_t unit;
      int64_t head, row;
    };
    std::vector<ForwardTask> tasks;
    constexpr int64_t kPackKeys = 8 * kKeyChunk;
    for (size_t n = first; n < last; ++n) {
      Unit& unit = schedule.units[n];
      place(p, unit, memory);
      memory += unit_floats(p, unit);
      for (int64_t j = 0; j < unit.sequence.k_length; j += kPackKeys) chunks.emplace_back(n, j);
      for (int64_t row = 0; row < unit.sequence.q_length; row += schedule.rows) {
        const RowBlock block = row_block(p, unit.sequence, 0, row, schedule.rows);
        for (int64_t h = 0; h < group_heads; ++h) {
          tasks.push_back({block.rows * (block.keys_end - block.keys_begin), n, unit.kv_head * group_heads + h, row});
        }
      }
    }
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const ForwardTask& x, const ForwardTask& y) { return x.cost > y.cost; });
#pragma omp parallel num_threads(schedule.threads)
    {
      thread_local Scratch own;
      float* scratch = own.get(forward_scratch(p, schedule.rows, schedule.widest));
#pragma omp for schedule(dynamic)
      for (size_t n = 0; n < chunks.size(); ++n) {
        const Unit& unit = schedule.units[chunks[n].first];
        const int64_t begin = chunks[n].second, end = std::min(begin + kPackKeys, unit.sequence.k_length);
        pack_keys(p, a.k, a.v, unit.sequence, unit.kv_head, begin, end, unit.packed);
      }
#pragma omp for schedule(dynamic)
      for (size_t n = 0; n < tasks.size(); ++n) {
        const Unit& unit = schedule.units[tasks[n].unit];
        forward_block(p, a, row_block(p, unit.sequence, tasks[n].head, tasks[n].row, schedule.rows),
                      head_parameters(p, bias, a.tau, a.sink, a.alibi_slopes, tasks[n].head), unit.packed, scratch);
      }
      own.trim();
    }
    first = last;
  }
  packed_memory.trim();
}

}  // namespace lazy::kernels
