// Sampling of the next token, with one block per row of logits. Let d = (largest score - score) / temperature. The
// weight of a token is exp(-d) in fixed point. The key of a token is d in fixed point, so that tokens with lower scores
// have larger keys. Every filter (top-k, top-p, min-p) keeps a prefix of the tokens in the order of (key, id). The end
// of a prefix is determined by its sum of weights or by its number of tokens. It is found by a radix search: the key
// has three digits, which are found one after the other with one histogram per digit. Then the id is searched among the
// tokens with this key.
#include <cfloat>
#include <type_traits>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/step.h"
#include "ops/sample_numbers.h"

namespace lazy::ops::cuda {

namespace {

namespace decoding = kernels::cuda::decoding;

constexpr int kThreads = 512, kWarps = kThreads / 32;
// Blocks per multiprocessor. A GPU with at least 128 multiprocessors then processes 256 rows at the same time.
constexpr int kBlocks = 2;
constexpr int kDigitBits = 11, kBuckets = 1 << kDigitBits, kOwnBuckets = kBuckets / kThreads;
constexpr float kKeySteps = 67108864.0f;        // 2^26 steps per unit of d; the largest key is at d = 64
constexpr float kWeightSteps = 68719476736.0f;  // 2^36 steps per unit of weight

struct Amount {
  uint64_t weight;
  uint32_t count;
};

// The end of a prefix of the tokens in the order of (key, id): the first token at which the inclusive sum of weights,
// or the number of tokens, exceeds a given limit.
struct PrefixEnd {
  uint32_t key;
  int id;  // tokens with key `key` belong to the prefix if their id is at most this id
};

struct HistogramMemory {
  uint64_t weights[kBuckets];
  uint32_t counts[kBuckets];
  uint64_t warp_weights[kWarps];
  uint32_t warp_counts[kWarps];
  float scores[kWarps];
  int ids[kWarps];
  Amount before;  // sum of weights and number of tokens before the key or token that is searched
  uint32_t found;
  int id;
};

// ADJUSTED: rows may have penalties and a logit bias. The loops over the scores are unrolled, so that many loads are in
// flight. With ADJUSTED they are unrolled less: the code for the adjustment is large, and more copies of it would
// exceed the instruction cache.
template <bool ADJUSTED>
struct ScoreRow {
  // Number of scores that a thread loads before it uses the first one.
  static constexpr int kAtOnce = ADJUSTED ? 2 : 16;
  const float* logits;
  const int32_t* counts;  // if null, the scores are not adjusted
  const float* bias;
  int vocabulary;
  float repetition, presence, frequency, inverse_temperature, largest;

  __device__ float adjusted(int id, float x) const {
    x += bias[id];
    const int32_t seen = counts[id];
    if (seen == 0) return x;
    x = x > 0 ? x / repetition : x * repetition;
    const int32_t text = seen & (kInPrompt - 1);
    return text > 0 ? x - (presence + frequency * static_cast<float>(text)) : x;
  }
  // Calls use(i, id, score) for COUNT tokens with id = first + i * STEP, i = 0, 1, ..., as long as id < end.
  template <int STEP, int COUNT, typename Use>
  __device__ void scores(int first, int end, const Use& use) const {
    float x[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = first + i * STEP < end ? __ldcg(logits + first + i * STEP) : 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int id = first + i * STEP;
      if constexpr (ADJUSTED) {
        if (id < end && counts) x[i] = adjusted(id, x[i]);
      }
      if (id < end) use(i, id, x[i]);
    }
  }
  template <int STEP, typename Use>
  __device__ void all_scores(int first, int end, const Use& use) const {
    for (int id = first; id < end; id += kAtOnce * STEP) scores<STEP, kAtOnce>(id, end, use);
  }
  __device__ float distance(float score) const { return (largest - score) * inverse_temperature; }
};

__device__ inline uint32_t key_of(float distance) {
  return distance >= 64 ? ~0u : static_cast<uint32_t>(distance * kKeySteps);
}
__device__ inline uint64_t weight_of(float distance) { return static_cast<uint64_t>(expf(-distance) * kWeightSteps); }

__device__ inline Amount operator+(const Amount& x, const Amount& y) {
  return {x.weight + y.weight, x.count + y.count};
}
__device__ inline Amount operator-(const Amount& x, const Amount& y) {
  return {x.weight - y.weight, x.count - y.count};
}
__device__ inline Amount of_lane(const Amount& x, int lane) {
  return {__shfl_sync(~0u, x.weight, lane), __shfl_sync(~0u, x.count, lane)};
}

// Returns the inclusive prefix sum over the threads of a warp.
__device__ inline Amount scan_warp(Amount x) {
  for (int step = 1; step < 32; step *= 2) {
    const Amount other{__shfl_up_sync(~0u, x.weight, step), __shfl_up_sync(~0u, x.count, step)};
    if (static_cast<int>(threadIdx.x % 32) >= step) x = x + other;
  }
  return x;
}

// Returns the inclusive prefix sum over the threads of the block; `all` receives the total.
__device__ inline Amount scan(Amount x, HistogramMemory& m, Amount& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = scan_warp(x);
  __syncthreads();  // wait until all threads have read the sums of the previous call
  if (lane == 31) {
    m.warp_weights[warp] = x.weight;
    m.warp_counts[warp] = x.count;
  }
  __syncthreads();
  all = {};
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) {
      x.weight += all.weight;
      x.count += all.count;
    }
    all.weight += m.warp_weights[w];
    all.count += m.warp_counts[w];
  }
  return x;
}

// Adds the amounts (weight and count) of the tokens for which in(id, distance) is true to `before`, in the order of
// their ids. Returns the first id at which the condition beyond_of(total) is true for the sum up to this id, where
// `total` is the sum over all ids. Such an id must exist. In the first pass, each warp sums a range of ids, and its
// lanes read adjacent ids. In the second pass, the range that contains the result is divided among the threads.
template <typename ScoreRow, typename In, typename BeyondOf>
__device__ int find_in_order(const ScoreRow& row, HistogramMemory& m, const Amount& before, const In& in,
                             const BeyondOf& beyond_of) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = (row.vocabulary + kThreads * kWarps - 1) / (kThreads * kWarps), stretch = part * kThreads;
  const int begin = warp * stretch, end = min(begin + stretch, row.vocabulary);
  const auto amount = [&](int id, float score) {
    const float d = row.distance(score);
    return in(id, d) ? Amount{weight_of(d), 1} : Amount{};
  };
  Amount own{}, all;
  row.template all_scores<32>(begin + lane, end, [&](int, int id, float x) { own = own + amount(id, x); });
  const Amount sum = before + scan(own, m, all);
  const auto beyond = beyond_of(all);
  // The range of a warp begins at the exclusive prefix sum of its first lane and ends at the inclusive prefix sum of
  // its last lane.
  const Amount at_begin = of_lane(sum - own, 0), at_end = of_lane(sum, 31);
  if (lane == 0 && !beyond(at_begin) && beyond(at_end)) {
    m.before = at_begin;
    m.id = begin;
  }
  __syncthreads();
  const int first = m.id + static_cast<int>(threadIdx.x) * part,
            last = min(min(first + part, m.id + stretch), row.vocabulary);
  own = {};
  row.template all_scores<1>(first, last, [&](int, int id, float x) { own = own + amount(id, x); });
  const Amount next = m.before + scan(own, m, all);
  Amount here = next - own;
  if (!beyond(here) && beyond(next)) {
    bool done = false;
    row.template all_scores<1>(first, last, [&](int, int id, float x) {
      here = here + amount(id, x);
      if (!done && beyond(here)) m.id = id, done = true;
    });
  }
  __syncthreads();
  const int id = m.id;
  __syncthreads();
  return id;
}

// Returns the first token, in the order by (key, id), at which the sum of weights exceeds `weight` or, with by_count,
// the number of tokens exceeds `count`. Such a token must exist.
template <typename ScoreRow>
__device__ __noinline__ PrefixEnd find(const ScoreRow& row, HistogramMemory& m, bool by_count, uint64_t weight,
                                       uint32_t count) {
  const auto beyond = [&](const Amount& sum) { return by_count ? sum.count > count : sum.weight > weight; };
  uint32_t prefix = 0;  // the digits of the key that have been found so far
  int shift = 32;
  Amount before{};
#pragma unroll 1
  for (int digit = 0; digit < 3; ++digit) {
    const int bits = digit < 2 ? kDigitBits : 32 - 2 * kDigitBits;
    for (int n = threadIdx.x; n < kBuckets; n += kThreads) {
      m.weights[n] = 0;
      m.counts[n] = 0;
    }
    __syncthreads();
    row.template all_scores<kThreads>(threadIdx.x, row.vocabulary, [&](int, int, float x) {
      const float d = row.distance(x);
      const uint32_t key = key_of(d);
      if (digit > 0 && key >> shift != prefix) return;
      const uint32_t bucket = key >> (shift - bits) & ((1u << bits) - 1);
      atomicAdd(reinterpret_cast<unsigned long long*>(m.weights + bucket),
                static_cast<unsigned long long>(weight_of(d)));
      atomicAdd(m.counts + bucket, 1u);
    });
    __syncthreads();
    const int own = kOwnBuckets * static_cast<int>(threadIdx.x);
    const auto bucket = [&](int n) { return Amount{m.weights[own + n], m.counts[own + n]}; };
    Amount sum{}, all;
    for (int n = 0; n < kOwnBuckets; ++n) sum = sum + bucket(n);
    Amount start = before + scan(sum, m, all) - sum;
    for (int n = 0; n < kOwnBuckets; ++n) {
      const Amount end = start + bucket(n);
      if (!beyond(start) && beyond(end)) {
        m.found = static_cast<uint32_t>(own + n);
        m.before = start;
      }
      start = end;
    }
    __syncthreads();
    prefix = prefix << bits | m.found;
    before = m.before;
    shift -= bits;
    __syncthreads();
  }
  const int id = find_in_order(
      row, m, before, [&](int, float d) { return key_of(d) == prefix; }, [&](const Amount&) { return beyond; });
  return {prefix, id};
}

// Returns the sum of the weights of the tokens for which keep(id, d) is true.
template <typename ScoreRow, typename Keep>
__device__ __noinline__ uint64_t sum_of(const ScoreRow& row, HistogramMemory& m, const Keep& keep) {
  Amount own{}, all;
  row.template all_scores<kThreads>(threadIdx.x, row.vocabulary, [&](int, int id, float x) {
    const float d = row.distance(x);
    if (keep(id, d)) own.weight += weight_of(d);
  });
  scan(own, m, all);
  return all.weight;
}

// Returns the random number that the generator of core/random.h with this seed returns after `draw` earlier numbers.
__device__ inline uint64_t random_number(uint64_t seed, uint64_t draw) {
  uint64_t z = seed + (draw + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
// Returns floor(x * y / 2^64).
__device__ inline uint64_t upper_product(uint64_t x, uint64_t y) {
  const uint64_t x0 = x & 0xFFFFFFFFu, x1 = x >> 32, y0 = y & 0xFFFFFFFFu, y1 = y >> 32;
  const uint64_t middle = x1 * y0 + (x0 * y0 >> 32), low = x0 * y1 + (middle & 0xFFFFFFFFu);
  return x1 * y1 + (middle >> 32) + (low >> 32);
}

template <bool ADJUSTED>
__global__ void __launch_bounds__(kThreads, kBlocks) sample(const __grid_constant__ SampleTokens p) {
  __shared__ HistogramMemory m;
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t* numbers = p.numbers + blockIdx.x * kSampleNumberCount;
  const auto number = [&](SampleNumber n) { return numbers[static_cast<int>(n)]; };
  const auto real = [&](SampleNumber n) { return __int_as_float(static_cast<int32_t>(number(n))); };
  const int64_t slot = p.slots[blockIdx.x];
  const bool adjusted = ADJUSTED && number(SampleNumber::adjusted) != 0;
  const float temperature = real(SampleNumber::temperature);
  ScoreRow<ADJUSTED> row{.logits = p.logits + blockIdx.x * p.vocabulary,
                         .counts = adjusted ? p.counts + slot * p.vocabulary : nullptr,
                         .bias = adjusted ? p.bias + slot * p.vocabulary : nullptr,
                         .vocabulary = static_cast<int>(p.vocabulary),
                         .repetition = real(SampleNumber::repetition_penalty),
                         .presence = real(SampleNumber::presence_penalty),
                         .frequency = real(SampleNumber::frequency_penalty),
                         .inverse_temperature = fminf(1 / temperature, FLT_MAX),
                         .largest = 0};

  // The largest score; among equal scores, the score with the lowest id.
  float best = -INFINITY;
  int best_id = row.vocabulary;
  bool bad = false;
  row.template all_scores<kThreads>(threadIdx.x, row.vocabulary, [&](int, int id, float x) {
    bad |= isnan(x);
    if (x > best || best_id == row.vocabulary) best = x, best_id = id;
  });
  const auto take = [&](float other, int other_id) {
    if (other > best || (other == best && other_id < best_id)) best = other, best_id = other_id;
  };
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, best, step);
    const int other_id = __shfl_xor_sync(~0u, best_id, step);
    take(other, other_id);
  }
  if (lane == 0) {
    m.scores[warp] = best;
    m.ids[warp] = best_id;
  }
  bad = __syncthreads_or(bad);
  for (int w = 0; w < kWarps; ++w) take(m.scores[w], m.ids[w]);
  bad = bad || isinf(best);  // if the largest score is infinite, its differences to the other scores are undefined
  row.largest = best;

  int token = best_id;
  if (temperature > 0 && !bad) {
    const int64_t top_k = number(SampleNumber::top_k);
    const float top_p = real(SampleNumber::top_p), min_p = real(SampleNumber::min_p);
    const bool by_k = top_k > 0 && top_k < row.vocabulary, sorted = by_k || top_p < 1;
    const uint64_t random = random_number(static_cast<uint64_t>(number(SampleNumber::seed)),
                                          static_cast<uint64_t>(number(SampleNumber::draw)));
    const auto likely = [&](float d) { return expf(-d) >= min_p; };  // the tokens that min_p keeps also form a prefix
    if (sorted) {
      // The last token of the prefix to keep. Without filters, the prefix contains all tokens. Top-k limits it to the
      // first k tokens. Top-p then limits it to the smallest prefix that has at least the fraction top_p of the
      // remaining weight.
      PrefixEnd last{~0u, row.vocabulary};
      const auto inside = [&](int id, float d) {
        const uint32_t key = key_of(d);
        return key < last.key || (key == last.key && id <= last.id);
      };
      if (by_k) last = find(row, m, true, 0, static_cast<uint32_t>(top_k - 1));
      uint64_t total = sum_of(row, m, inside);
      if (top_p < 1) {
        const auto wanted = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(total));
        last = find(row, m, false, wanted > 0 ? wanted - 1 : 0, 0);
        total = sum_of(row, m, inside);
      }
      if (min_p > 0) total = sum_of(row, m, [&](int id, float d) { return inside(id, d) && likely(d); });
      token = find(row, m, false, upper_product(random, total), 0).id;
    } else {
      token = find_in_order(
          row, m, {}, [&](int, float d) { return likely(d); },
          [&](const Amount& total) {
            return [point = upper_product(random, total.weight)](const Amount& sum) { return sum.weight > point; };
          });
    }
  }
  if (threadIdx.x != 0) return;
  p.tokens[blockIdx.x] = bad ? -1 : token;
  p.last[slot] = bad ? 0 : token;
  if (adjusted && !bad) p.counts[slot * p.vocabulary + token] += 1;
}

}  // namespace

void sample_tokens(const SampleTokens& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const auto run = [&](auto adjusted) {
    decoding::start<sample<decltype(adjusted)::value>>(p, static_cast<unsigned>(p.rows), kThreads, 0, true, stream);
  };
  p.counts ? run(std::true_type{}) : run(std::false_type{});
}

}  // namespace lazy::ops::cuda
