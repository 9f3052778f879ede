// Decode on CPUs. The keys of a sequence are split into spans, which threads process in parallel. The first step
// computes the scores of all spans, the second step normalizes whole rows of scores, and the third step computes a
// weighted sum of V for every span. These sums are then added in order. Because all scores of a row are known before
// the third step, K is read only once and no partial sum is rescaled.
#include "lazy/decode.h"

#include <omp.h>

#include "attention/cpu/block.h"
#include "attention/cpu/schedule.h"

namespace lazy::kernels {

using namespace cpu;

namespace {

// Sequences are processed together as long as their scores fit in this number of floats (64 MiB).
constexpr int64_t kScoreFloats = int64_t{16} << 20;

struct KeySpan {
  size_t sequence;
  int64_t begin, end;  // range of keys
  float* out;          // shape (rows, v_stride)
};

// Returns the number of keys per span: 512, or more if the sequence would then have more than 64 spans. Small spans
// balance the load of the threads, but each span needs memory and time for its partial sums.
int64_t span_keys(int64_t keys) {
  return static_cast<int64_t>(round_up(static_cast<size_t>(std::max<int64_t>(512, (keys + 63) / 64)), kKeyChunk));
}

DecodeSequence describe(const Problem& problem, const Decode<float>& a, int64_t b) {
  Problem p = problem;
  p.k_length = a.lengths[b];
  const Sequence s = sequence(p, 0);
  DecodeSequence d;
  d.batch = b;
  d.keys_begin = visible_keys(p, s, 0).begin / static_cast<int64_t>(kKeyChunk) * static_cast<int64_t>(kKeyChunk);
  d.keys_end = std::max(d.keys_begin, visible_keys(p, s, p.q_length - 1).end);
  d.q_stride = round_up(p.head_dim, 16);
  d.v_stride = round_up(p.value_dim, 16);
  d.strip = strip_stride(round_up(static_cast<size_t>(d.keys_end - d.keys_begin), kKeyChunk));
  return d;
}

// For each kv head, counts the keys of the span that have a nonzero weight for at least one row of the head group, and
// adds the numbers to `counts`. A NaN counts as nonzero.
void count_value_rows(const Problem& p, const DecodeSequence& s, const KeySpan& span, int64_t* counts) {
  const int64_t group_rows = p.heads / p.kv_heads * p.q_length;
  for (int64_t h = 0; h < p.kv_heads; ++h) {
    int64_t count = 0;
    for (int64_t j = span.begin; j < span.end; ++j) {
      const float* weight = s.scores + h * group_rows * s.strip + (j - s.keys_begin);
      bool read = false;
      for (int64_t r = 0; r < group_rows; ++r) read |= weight[r * s.strip] != 0;
      count += read;
    }
#pragma omp atomic
    counts[s.batch * p.kv_heads + h] += count;
  }
}

}  // namespace

void decode(const Problem& p, const Decode<float>& a) {
  require_served(p);
  const int64_t rows = p.heads * p.q_length;
  if (rows == 0) return;
  const std::vector<float> bias = symmetric_bias(p, a.distance_bias);
  const int threads = p.threads > 0 ? p.threads : omp_get_max_threads();
  thread_local Scratch shared_memory;
  for (int64_t first = 0; first < p.batch;) {
    std::vector<DecodeSequence> sequences;
    int64_t scores = 0;
    for (int64_t b = first; b < p.batch; ++b) {
      const DecodeSequence s = describe(p, a, b);
      scores += rows * static_cast<int64_t>(s.strip);
      if (b > first && scores > kScoreFloats) break;
      sequences.push_back(s);
    }
    std::vector<KeySpan> spans;
    std::vector<size_t> first_span;
    size_t total = 0;
    for (size_t n = 0; n < sequences.size(); ++n) {
      const DecodeSequence& s = sequences[n];
      total += rows * (s.q_stride + s.strip);
      first_span.push_back(spans.size());
      const int64_t step = span_keys(s.keys_end - s.keys_begin);
      for (int64_t j = s.keys_begin; j < s.keys_end; j += step) {
        spans.push_back({n, j, std::min(j + step, s.keys_end), nullptr});
        total += rows * s.v_stride;
      }
    }
    first_span.push_back(spans.size());
    float* memory = shared_memory.get(total);
    for (DecodeSequence& s : sequences) {
      s.q = memory;
      s.scores = s.q + rows * s.q_stride;
      memory = s.scores + rows * s.strip;
    }
    for (KeySpan& span : spans) {
      span.out = memory;
      memory += rows * sequences[span.sequence].v_stride;
    }
    const auto all_rows = static_cast<int64_t>(sequences.size()) * rows;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (const DecodeSequence& s : sequences) decode_load(p, a, s);
#pragma omp for schedule(dynamic)
      for (const KeySpan& span : spans) decode_scores(p, a, sequences[span.sequence], span.begin, span.end);
#pragma omp for schedule(dynamic)
      for (int64_t n = 0; n < all_rows; ++n) {
        const int64_t row = n % rows;
        decode_normalize(p, a, sequences[n / rows], row,
                         head_parameters(p, bias, a.tau, a.sink, a.alibi_slopes, decode_row(p, row).head));
      }
#pragma omp for schedule(dynamic)
      for (const KeySpan& span : spans) {
        decode_values(p, a, sequences[span.sequence], span.begin, span.end, span.out);
        if (a.value_rows) count_value_rows(p, sequences[span.sequence], span, a.value_rows);
      }
#pragma omp for schedule(static)
      for (int64_t n = 0; n < all_rows; ++n) {
        const size_t index = n / rows, begin = first_span[index], count = first_span[index + 1] - begin;
        decode_store(p, a, sequences[index], n % rows, count > 0 ? spans[begin].out : nullptr, count,
                     rows * sequences[index].v_stride);
      }
    }
    first += static_cast<int64_t>(sequences.size());
  }
  shared_memory.trim();
}

}  // namespace lazy::kernels
