#include "attention/cpu/schedule.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace lazy::kernels::cpu {

int64_t rows_per_block(const Problem& p, int64_t widest, int strips) {
  constexpr int64_t kStripFloats = 512 * 1024;  // maximum size of all score matrices of a row block, in floats (2 MiB)
  const int64_t rows = kStripFloats / std::max<int64_t>(strips * widest, 1) / 6 * 6;
  return std::clamp<int64_t>(rows, 12, kMaxRows);
}

WorkSchedule make_schedule(const Problem& p, int strips) {
  WorkSchedule schedule;
  schedule.threads = p.threads > 0 ? p.threads : omp_get_max_threads();
  for (int64_t n = 0; n < sequence_count(p); ++n) {
    const Sequence s = sequence(p, n);
    if (s.q_length == 0 || s.k_length == 0) continue;
    schedule.longest_keys = std::max(schedule.longest_keys, s.k_length);
    for (int64_t h = 0; h < p.kv_heads; ++h) schedule.units.push_back({s, h, {}});
  }
  int64_t widest = schedule.longest_keys;
  if (p.window >= 0) widest = std::min(widest, (p.causal ? 1 : 2) * p.window + kMaxRows + 64);
  schedule.widest = static_cast<int64_t>(round_up(widest, kKeyChunk));
  schedule.rows = rows_per_block(p, schedule.widest, strips);
  return schedule;
}

std::vector<float> symmetric_bias(const Problem& p, const float* distance_bias) {
  const size_t size = symmetric_bias_size(p.bias_window);
  std::vector<float> table(size * p.heads, 0.0f);
  for (int64_t h = 0; h < p.heads && size > 0; ++h) {
    float* center = table.data() + h * size + p.bias_window - 1;
    for (int64_t d = 0; d < p.bias_window; ++d) center[d] = center[-d] = distance_bias[h * p.bias_window + d];
  }
  return table;
}

HeadParameters head_parameters(const Problem& p, const std::vector<float>& bias, const float* tau, const float* sink,
                               const float* alibi_slopes, int64_t head) {
  HeadParameters parameters;
  if (p.bias_window > 0) parameters.symmetric_bias = bias.data() + head * symmetric_bias_size(p.bias_window);
  if (tau) parameters.tau = tau[head];
  if (sink) parameters.sink = sink[head];
  if (alibi_slopes) parameters.alibi_slope = alibi_slopes[head];
  return parameters;
}

void require_served(const Problem& p) {
  const std::string unmet = unmet_condition(p);
  if (!unmet.empty()) throw std::invalid_argument(unmet);
}

constexpr size_t kHugePage = size_t{2} << 20, kKeep = size_t{64} << 20;

Scratch::~Scratch() { release(); }

void Scratch::release() {
  std::free(data_);
  data_ = nullptr;
  bytes_ = 0;
}

float* Scratch::get(size_t count) {
  const size_t bytes = count * sizeof(float);
  if (bytes > bytes_) {
    release();
    const size_t alignment = bytes >= kHugePage ? kHugePage : 4096;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = static_cast<float*>(std::aligned_alloc(alignment, rounded));
    if (!data_) throw std::bad_alloc();
    bytes_ = rounded;
#ifdef MADV_HUGEPAGE
    if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
#endif
  }
  return data_;
}

void Scratch::trim() {
  if (bytes_ > kKeep) release();
}

}  // namespace lazy::kernels::cpu
