#include "ops/sample_tokens.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/step_kernels.h"

namespace lazy::ops {

namespace {

constexpr float kKeySteps = 0x1p26f, kWeightSteps = 0x1p36f;  // must be equal to those in cuda/sample_tokens.cu

// Returns the random number that the generator of core/random.h with this seed returns after `draw` earlier numbers.
uint64_t random_number(uint64_t seed, uint64_t draw) {
  uint64_t z = seed + (draw + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Samples the next token of one row, with the same arithmetic as the CUDA kernel but in scalar code. Returns -1 if a
// score is NaN or the largest score is infinite.
int64_t sample_row(const float* logits, const int32_t* counts, const float* bias, int64_t vocabulary,
                   const int64_t* numbers) {
  const auto number = [&](SampleNumber n) { return numbers[static_cast<int64_t>(n)]; };
  const auto real = [&](SampleNumber n) { return std::bit_cast<float>(static_cast<int32_t>(number(n))); };
  const auto size = static_cast<size_t>(vocabulary);
  std::vector<float> score(logits, logits + vocabulary);
  for (size_t id = 0; counts && id < size; ++id) {
    float& x = score[id];
    x += bias[id];
    if (counts[id] == 0) continue;
    const float repetition = real(SampleNumber::repetition_penalty);
    x = x > 0 ? x / repetition : x * repetition;
    const int32_t text = counts[id] & (kInPrompt - 1);
    if (text > 0) {
      x -= real(SampleNumber::presence_penalty) + real(SampleNumber::frequency_penalty) * static_cast<float>(text);
    }
  }
  if (std::any_of(score.begin(), score.end(), [](float x) { return std::isnan(x); })) return -1;
  const auto best = std::max_element(score.begin(), score.end());
  if (std::isinf(*best)) return -1;  // the differences to an infinite score are undefined
  const float temperature = real(SampleNumber::temperature), top_p = real(SampleNumber::top_p),
              min_p = real(SampleNumber::min_p);
  if (temperature == 0) return best - score.begin();
  const float inverse = std::min(1 / temperature, std::numeric_limits<float>::max());
  std::vector<float> distance(size);
  std::vector<uint64_t> weight(size);
  std::vector<uint32_t> key(size);
  for (size_t id = 0; id < size; ++id) {
    distance[id] = (*best - score[id]) * inverse;
    key[id] = distance[id] >= 64 ? ~0u : static_cast<uint32_t>(distance[id] * kKeySteps);
    weight[id] = static_cast<uint64_t>(std::exp(-distance[id]) * kWeightSteps);
  }
  const int64_t top_k = number(SampleNumber::top_k);
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  const bool by_k = top_k > 0 && top_k < vocabulary;
  if (by_k || top_p < 1) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key[a] < key[b]; });
  }
  const auto total = [&] {
    return std::accumulate(order.begin(), order.end(), uint64_t{0},
                           [&](uint64_t sum, size_t id) { return sum + weight[id]; });
  };
  if (by_k) order.resize(static_cast<size_t>(top_k));
  if (top_p < 1) {
    const auto wanted = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(total()));
    uint64_t sum = 0;
    size_t kept = 0;
    do sum += weight[order[kept++]];
    while (sum < wanted);
    order.resize(kept);
  }
  if (min_p > 0) std::erase_if(order, [&](size_t id) { return std::exp(-distance[id]) < min_p; });
  const uint64_t random = random_number(static_cast<uint64_t>(number(SampleNumber::seed)),
                                        static_cast<uint64_t>(number(SampleNumber::draw)));
  const auto point = static_cast<uint64_t>(static_cast<unsigned __int128>(random) * total() >> 64);
  uint64_t sum = 0;
  for (const size_t id : order) {
    sum += weight[id];
    if (sum > point) return static_cast<int64_t>(id);
  }
  return -1;  // not reached: `point` is below the sum of all weights
}

void sample_cpu(const SampleInputs& in) {
  const int64_t vocabulary = in.logits.size(1);
  for (int64_t row = 0; row < in.logits.size(0); ++row) {
    const int64_t slot = in.slots.const_data_ptr<int64_t>()[row];
    const int64_t* numbers = in.numbers.const_data_ptr<int64_t>() + row * kSampleNumberCount;
    const bool adjusted = in.counts.defined() && numbers[static_cast<int64_t>(SampleNumber::adjusted)] != 0;
    int32_t* counts = adjusted ? in.counts.mutable_data_ptr<int32_t>() + slot * vocabulary : nullptr;
    const float* bias = adjusted ? in.bias.const_data_ptr<float>() + slot * vocabulary : nullptr;
    const int64_t token =
        sample_row(in.logits.const_data_ptr<float>() + row * vocabulary, counts, bias, vocabulary, numbers);
    in.tokens.mutable_data_ptr<int64_t>()[row] = token;
    in.last.mutable_data_ptr<int64_t>()[slot] = std::max<int64_t>(token, 0);
    if (adjusted && token >= 0) ++counts[token];
  }
}

}  // namespace

void SampleRow::write(int64_t* to) const {
  const auto set = [&](SampleNumber n, int64_t x) { to[static_cast<int64_t>(n)] = x; };
  const auto set_real = [&](SampleNumber n, float x) { set(n, std::bit_cast<int32_t>(x)); };
  set_real(SampleNumber::temperature, temperature);
  set(SampleNumber::top_k, top_k);
  set_real(SampleNumber::top_p, top_p);
  set_real(SampleNumber::min_p, min_p);
  set(SampleNumber::seed, static_cast<int64_t>(seed));
  set(SampleNumber::draw, draw);
  set(SampleNumber::adjusted, adjusted);
  set_real(SampleNumber::repetition_penalty, repetition_penalty);
  set_real(SampleNumber::presence_penalty, presence_penalty);
  set_real(SampleNumber::frequency_penalty, frequency_penalty);
}

void sample_tokens(const SampleInputs& in) {
  TORCH_CHECK(in.logits.dim() == 2 && in.logits.scalar_type() == at::kFloat && in.logits.is_contiguous(),
              "sample_tokens: expected contiguous fp32 logits (rows, vocabulary), found ", in.logits.sizes(), " of ",
              in.logits.scalar_type());
  const int64_t rows = in.logits.size(0);
  TORCH_CHECK(in.numbers.numel() == rows * kSampleNumberCount && in.slots.numel() == rows && in.tokens.numel() == rows,
              "sample_tokens: expected numbers, slots and tokens for ", rows, " rows, found ", in.numbers.sizes(), ", ",
              in.slots.sizes(), " and ", in.tokens.sizes());
  if (in.logits.is_cpu()) return sample_cpu(in);
  TORCH_CHECK(step_kernels(), "sample_tokens: the CUDA operators are not loaded");
  step_kernels()->sample_tokens(in);
}

}  // namespace lazy::ops
