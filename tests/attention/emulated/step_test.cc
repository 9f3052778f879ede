// Tests of the kernels of a decode step (src/ops/cuda/step.h, lazy/decode_step_cuda.h) against simple loops and the
// sampler on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "../device.h"
#include "generate/sampler.h"
#include "lazy/decode_step_cuda.h"
#include "ops/cuda/step.h"
#include "ops/sample_numbers.h"
#include "skinny_gemm_case.h"

namespace lazy::ops::cuda {
namespace {

TEST(Step, SkinnyGemm_MatchesReference) {
  for (const int64_t rows : {1, 8, 9, 17, 33}) {
    for (const int64_t in : {64, 264}) {
      for (const Product& p :
           {Product{rows, in, 40, false, false, false, false}, Product{rows, in, 48, true, false, false, true},
            Product{rows, in, 24, true, false, true, false}, Product{rows, in, 40, false, true, false, false},
            Product{rows, in, 41, true, true, false, false}}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << in << ", " << p.out << " columns, " << p.norm << p.add
                                        << p.swiglu << p.wide);
        SkinnyGemmProduct product(p);
        const std::vector<float> found = product.run(rows);
        const std::vector<double> expected = product.expected();
        double largest = 0, error = 0;
        for (size_t n = 0; n < found.size(); ++n) {
          largest = std::max(largest, std::abs(expected[n]));
          error = std::max(error, std::abs(found[n] - expected[n]));
        }
        EXPECT_LE(error, 0.012 * largest);  // allows three bf16 roundings: of normalized x, a product and the result
        const std::vector<float> first = product.run(1);
        EXPECT_TRUE(std::equal(first.begin(), first.end(), found.begin()))
            << "the results of a row depend on the other rows";
      }
    }
  }
}

struct Shape {
  int64_t rows, in, out;
};

TEST(Step, TiledGemm_MatchesSkinnyGemm) {
  for (const auto& [rows, in, out] :
       {Shape{18, 40, 25590}, Shape{41, 264, 10230}, Shape{70, 264, 10230}, Shape{70, 264, 2034}}) {
    for (const Product& p :
         {Product{rows, in, out, false, false, false, true}, Product{rows, in, out / 2, true, false, true, false},
          Product{rows, in, out, true, true, false, false}}) {
      compare_with_rows_by_themselves(p);
    }
  }
}

// Covers small and large numbers of tiles, launches with and without clusters, and inner dimensions that need fewer
// steps and more steps than the pipeline has stages.
TEST(Step, SplitKGemm_MatchesSkinnyGemm) {
  for (const emulated::Gpu& gpu : kGpus) {
    const As as(gpu);
    for (const auto& [rows, in, out] :
         {Shape{9, 520, 50}, Shape{16, 3080, 70}, Shape{17, 264, 50}, Shape{27, 3080, 41}, Shape{32, 40, 36},
          Shape{33, 520, 50}, Shape{64, 1288, 70}, Shape{64, 2056, 440}, Shape{16, 776, 3530}, Shape{64, 520, 2034},
          Shape{9, 40, 2100}}) {
      for (const Product& p :
           {Product{rows, in, out, false, false, false, true}, Product{rows, in, out, true, true, false, false},
            Product{rows, in, out / 2, true, false, true, false}, Product{rows, in, out / 2, false, false, true, false},
            Product{rows, in, out, false, true, false, false}}) {
        if (in * out > 1000000 && p.norm == p.wide) continue;  // too slow in the emulator
        compare_with_rows_by_themselves(p);
        if (in * out < 100000 || gpu.major == 9) compare_with_rows_by_themselves<__half>(p);
      }
    }
  }
}

// Covers the kernel for up to kMaxUngroupedRows rows, and the kernels for more rows with each of their tile shapes.
TEST(Step, SkinnyGemmWithPageWrite_MatchesSeparateKernels) {
  for (const PagesShape& shape :
       {PagesShape{1, 264, 4, 2}, PagesShape{8, 264, 4, 2}, PagesShape{8, 8, 3, 1}, PagesShape{9, 264, 4, 2},
        PagesShape{17, 264, 4, 2}, PagesShape{16, 1288, 140, 3}, PagesShape{17, 40, 1064, 4},
        PagesShape{27, 1288, 4, 2}, PagesShape{32, 1032, 140, 3}, PagesShape{33, 264, 4, 2}, PagesShape{64, 264, 4, 2},
        PagesShape{41, 40, 420, 4}, PagesShape{70, 264, 4, 2}, PagesShape{70, 40, 83, 3}, PagesShape{70, 40, 420, 4}}) {
    compare_with_rotations(shape);
  }
}

void turn_keys(int64_t pairs, bool interleaved) {
  constexpr int64_t kTokens = 5, kHeads = 4, kKvHeads = 2, kDim = Pages::kDim, heads = kHeads + 2 * kKvHeads;
  const std::vector<Half> joint = random_halves(kTokens * heads * kDim, 1, 1);
  Pages pages(kTokens, kHeads, kKvHeads, pairs);
  pages.turn(joint, interleaved);
  const std::vector<Half>&q = pages.q, &keys = pages.keys, &values = pages.values;
  const std::vector<int64_t>&positions = pages.positions, &slots = pages.slots;
  int64_t written = 0;
  for (const Half x : keys) written += x.bits != 0;
  EXPECT_EQ(written, kTokens * kKvHeads * kDim);
  for (int64_t token = 0; token < kTokens; ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      const Half* from = joint.data() + (token * heads + head) * kDim;
      const int64_t place = slots[static_cast<size_t>(token)] * kKvHeads;
      const Half* to = head < kHeads              ? q.data() + (token * kHeads + head) * kDim
                       : head < kHeads + kKvHeads ? keys.data() + (place + head - kHeads) * kDim
                                                  : values.data() + (place + head - kHeads - kKvHeads) * kDim;
      for (int64_t d = 0; d < kDim; ++d) {
        double x = value(from[d]);
        if (head < kHeads + kKvHeads && d < 2 * pairs) {
          const int64_t pair = interleaved ? d / 2 : d % pairs;
          const bool second = interleaved ? d % 2 == 1 : d >= pairs;
          const double other = value(from[interleaved ? d ^ 1 : (d + pairs) % (2 * pairs)]);
          const double angle =
              static_cast<double>(positions[static_cast<size_t>(token)]) * pages.frequency[static_cast<size_t>(pair)];
          x = x * std::cos(angle) + (second ? other : -other) * std::sin(angle);
        }
        EXPECT_NEAR(value(to[d]), x, 0x1p-8 * std::abs(x) + 1e-6) << "token " << token << " head " << head;
      }
    }
  }
}

// Each key to gather has a source (ops/kv_cache_write.h): a token of this step, a slot of a page, or zeros. A token
// that is not the source of any key is not written to a page.
void gather_keys(int64_t pairs, bool interleaved, int times) {
  constexpr int64_t kTokens = 5, kHeads = 4, kKvHeads = 2, kDim = Pages::kDim, kRow = kKvHeads * kDim;
  const std::vector<Half> joint = random_halves(kTokens * (kHeads + 2 * kKvHeads) * kDim, 1, 1);
  Pages apart(kTokens, kHeads, kKvHeads, pairs), gathered(kTokens, kHeads, kKvHeads, pairs);
  for (Pages* pages : {&apart, &gathered}) {
    pages->keys = random_halves(static_cast<int64_t>(pages->keys.size()), 2, 1);
    pages->values = random_halves(static_cast<int64_t>(pages->values.size()), 3, 1);
  }
  const std::vector<Half> keys_before = gathered.keys;
  std::vector<int64_t> sources;
  for (int n = 0; n < times; ++n) sources.insert(sources.end(), {-2 - 1, 2, 0, -1, -2, 4, -1, 1, -2 - 1});
  std::vector<Half> keys(sources.size() * kRow), values(keys.size());
  apart.turn(joint, interleaved);
  gathered.turn(joint, interleaved, sources, keys.data(), values.data());
  EXPECT_EQ(bits_of(gathered.q), bits_of(apart.q));
  const auto row_of = [&](const std::vector<Half>& all, int64_t row) {
    const auto bits = bits_of(all);
    return std::vector<uint16_t>(bits.begin() + row * kRow, bits.begin() + (row + 1) * kRow);
  };
  for (size_t n = 0; n < sources.size(); ++n) {
    const int64_t source = sources[n], place = source < 0 ? -2 - source : apart.slots[static_cast<size_t>(source)];
    const auto row = static_cast<int64_t>(n);
    SCOPED_TRACE(testing::Message() << "row " << n);
    if (source == -1) {
      EXPECT_EQ(row_of(keys, row), std::vector<uint16_t>(kRow, 0));
      EXPECT_EQ(row_of(values, row), std::vector<uint16_t>(kRow, 0));
      continue;
    }
    EXPECT_EQ(row_of(keys, row), row_of(apart.keys, place));
    EXPECT_EQ(row_of(values, row), row_of(apart.values, place));
    EXPECT_EQ(row_of(gathered.keys, place), row_of(apart.keys, place));
  }
  EXPECT_EQ(row_of(gathered.keys, apart.slots[3]), row_of(keys_before, apart.slots[3]));
}

TEST(Step, KvCacheWrite_GathersSources) {
  for (const bool interleaved : {false, true}) {
    for (const int64_t pairs : {0, 6, 8}) {
      SCOPED_TRACE(testing::Message() << pairs << " pairs, interleaved " << interleaved);
      gather_keys(pairs, interleaved, 1);
      gather_keys(pairs, interleaved, 120);  // so many tokens that each thread processes several heads
    }
  }
}

TEST(Step, KvCacheWrite_AppliesRope) {
  for (const bool interleaved : {false, true}) {
    for (const int64_t pairs : {0, 6, 8}) {  // with 8 pairs, the kernel uses 16-byte accesses
      SCOPED_TRACE(testing::Message() << pairs << " pairs, interleaved " << interleaved);
      turn_keys(pairs, interleaved);
    }
  }
}

struct TokenCase {
  int64_t heads, groups, keys, values;
  bool delta, decays, constant, begins;
};

// The expected result is computed in float64 from the kernel's inputs. q, k and v of a token are contiguous slices of
// one row.
TEST(Step, RecurrenceStep_MatchesReference) {
  constexpr int64_t kBatch = 2;
  for (const TokenCase& c :
       {TokenCase{2, 2, 64, 16, false, true, true, false}, TokenCase{4, 1, 24, 20, false, true, false, false},
        TokenCase{2, 2, 128, 64, true, false, false, false}, TokenCase{2, 1, 5, 4, false, false, false, true},
        TokenCase{3, 3, 256, 36, true, true, false, false}, TokenCase{1, 1, 500, 8, true, true, false, true}}) {
    SCOPED_TRACE(testing::Message() << c.keys << " keys, " << c.values << " values, delta rule " << c.delta);
    const int64_t row = 2 * c.groups * c.keys + c.heads * c.values, rates = kBatch * c.heads;
    const std::vector<Half> all = random_halves(kBatch * row, 0.3F, 1);
    const auto floats = [](int64_t size, uint32_t seed) {
      std::vector<float> out;
      for (const Half x : random_halves(size, 0.5F, seed)) out.push_back(value(x));
      return out;
    };
    std::vector<float> log_decay = floats(rates, 2), beta = floats(rates, 3), skip = floats(c.heads, 4),
                       state = floats(rates * c.keys * c.values, 5), next(state.size(), NAN);
    for (float& x : log_decay) x = -std::abs(x);
    std::vector<Half> out(static_cast<size_t>(rates * c.values));
    RecurrenceStep a{.type = DType::bf16};
    a.q = all.data();
    a.k = all.data() + c.groups * c.keys;
    a.v = all.data() + 2 * c.groups * c.keys;
    a.q_batch = a.k_batch = a.v_batch = row;
    a.q_head = a.k_head = c.keys;
    a.v_head = c.values;
    if (c.decays) a.log_decay = log_decay.data();
    a.constant_decay = c.constant;
    if (c.delta || !c.constant) a.beta = beta.data();
    if (!c.delta) a.skip = skip.data();
    if (!c.begins) a.state = state.data();
    a.next_state = next.data();
    a.out = out.data();
    a.batch = kBatch;
    a.heads = c.heads;
    a.groups = c.groups;
    a.key_dim = c.keys;
    a.value_dim = c.values;
    a.scale = 0.25F;
    a.delta = c.delta;
    recurrence_step(a, nullptr);
    for (int64_t place = 0; place < rates; ++place) {
      const int64_t head = place % c.heads, of_token = place / c.heads * row, group = head / (c.heads / c.groups);
      const auto at = [](const auto& from, int64_t n) -> double { return from[static_cast<size_t>(n)]; };
      const auto input = [&](int64_t n) -> double { return value(all[static_cast<size_t>(of_token + n)]); };
      const double decay = c.decays ? std::exp(at(log_decay, c.constant ? head : place)) : 1;
      for (int64_t column = 0; column < c.values; ++column) {
        const double v = input(2 * c.groups * c.keys + head * c.values + column);
        const auto cell = [&](int64_t key) { return (place * c.keys + key) * c.values + column; };
        const auto k = [&](int64_t key) { return input((c.groups + group) * c.keys + key); };
        double kept = 0, read = 0;
        for (int64_t key = 0; key < c.keys; ++key) kept += c.begins ? 0 : decay * k(key) * at(state, cell(key));
        const double u = (a.beta ? at(beta, place) : 1) * (c.delta ? v - kept : v);
        for (int64_t key = 0; key < c.keys; ++key) {
          const double x = (c.begins ? 0 : decay * at(state, cell(key))) + k(key) * u;
          EXPECT_NEAR(at(next, cell(key)), x, 1e-5);
          read += 0.25 * input(group * c.keys + key) * x;
        }
        if (a.skip) read += at(skip, head) * v;
        EXPECT_NEAR(value(out[static_cast<size_t>(place * c.values + column)]), read, 0x1p-8 * std::abs(read) + 1e-5);
      }
    }
  }
}

TEST(Step, ConvolutionStep_MatchesReference) {
  constexpr int64_t kBatch = 2, kChannels = 300, kTaps = 4, kRow = 310;
  const std::vector<Half> x = random_halves(kBatch * kRow, 1, 1), past = random_halves(kBatch * 3 * kChannels, 1, 2);
  std::vector<float> weight, bias;
  for (const Half w : random_halves(kChannels * kTaps, 0.5F, 3)) weight.push_back(value(w));
  for (const Half b : random_halves(kChannels, 0.5F, 4)) bias.push_back(value(b));
  std::vector<Half> next(past.size()), y(kBatch * kChannels);
  ConvolutionStep a{.type = DType::bf16};
  a.x = x.data();
  a.x_batch = kRow;
  a.weight = weight.data();
  a.bias = bias.data();
  a.past = past.data();
  a.next_past = next.data();
  a.y = y.data();
  a.batch = kBatch;
  a.channels = kChannels;
  a.taps = kTaps;
  convolution_step(a, nullptr);
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t channel = 0; channel < kChannels; ++channel) {
      double sum = bias[static_cast<size_t>(channel)];
      for (int64_t tap = 0; tap < kTaps; ++tap) {
        const auto at = [&](int64_t n) { return static_cast<size_t>((b * 3 + n) * kChannels + channel); };
        const float seen = value(tap < 3 ? past[at(tap)] : x[static_cast<size_t>(b * kRow + channel)]);
        EXPECT_TRUE(tap == 0 || value(next[at(tap - 1)]) == seen);
        sum += weight[static_cast<size_t>(channel * kTaps + tap)] * seen;
      }
      const double expected = sum / (1 + std::exp(-sum));
      EXPECT_NEAR(value(y[static_cast<size_t>(b * kChannels + channel)]), expected, 0x1p-7 * std::abs(expected) + 1e-5);
    }
  }
}

TEST(Step, PinnedCopy_CopiesEveryWord) {
  for (const size_t words : {1, 255, 1024, 70001}) {
    std::vector<uint64_t> from(words), to(words + 1, 7);
    for (size_t n = 0; n < words; ++n) from[n] = n * 0x9E3779B97F4A7C15u + 1;
    pinned_copy({to.data(), from.data(), static_cast<int64_t>(words)}, nullptr);
    EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin())) << words;
    EXPECT_EQ(to.back(), 7);
  }
}

std::vector<int64_t> numbers_of(const SamplingOptions& o, int64_t draw, bool adjusted) {
  std::vector<int64_t> out(kSampleNumberCount);
  const auto set = [&](SampleNumber n, int64_t x) { out[static_cast<size_t>(n)] = x; };
  const auto real = [&](SampleNumber n, double x) { set(n, std::bit_cast<int32_t>(static_cast<float>(x))); };
  real(SampleNumber::temperature, o.temperature);
  set(SampleNumber::top_k, o.top_k);
  real(SampleNumber::top_p, o.top_p);
  real(SampleNumber::min_p, o.min_p);
  set(SampleNumber::seed, static_cast<int64_t>(o.seed));
  set(SampleNumber::draw, draw);
  set(SampleNumber::adjusted, adjusted);
  real(SampleNumber::repetition_penalty, o.repetition_penalty);
  real(SampleNumber::presence_penalty, o.presence_penalty);
  real(SampleNumber::frequency_penalty, o.frequency_penalty);
  return out;
}

int64_t sampled(const std::vector<float>& logits, const SamplingOptions& options, int64_t draw = 0,
                std::vector<int32_t>* counts = nullptr, std::vector<float>* bias = nullptr) {
  const std::vector<int64_t> numbers = numbers_of(options, draw, counts);
  const int64_t slot = 1;
  int64_t last[2] = {-7, -7}, token = -7;
  SampleTokens a{};
  a.logits = logits.data();
  a.numbers = numbers.data();
  a.slots = &slot;
  if (counts) {
    a.counts = counts->data();
    a.bias = bias->data();
  }
  a.last = last;
  a.tokens = &token;
  a.rows = 1;
  a.vocabulary = static_cast<int64_t>(logits.size());
  sample_tokens(a, nullptr);
  EXPECT_EQ(last[1], std::max<int64_t>(token, 0));
  EXPECT_EQ(last[0], -7);
  return token;
}

TEST(Step, SampleTokens_MatchesHostSampler) {
  std::mt19937 random(3);
  for (const size_t vocabulary : {50, 3001}) {
    for (int mode = 0; mode < 16; ++mode) {
      std::normal_distribution<float> normal(0, mode % 3 == 0 ? 0.3F : mode % 3 == 1 ? 2.0F : 6.0F);
      std::vector<float> logits(vocabulary);
      // Rounding to multiples of 1/4 creates ties.
      for (float& x : logits) x = mode % 4 == 3 ? std::round(normal(random) * 4) / 4 : normal(random);
      SamplingOptions o{.temperature = mode == 0 ? 0 : mode % 2 == 1 ? 0.8 : 1.3, .seed = random()};
      if (mode & 1) o.top_p = 0.9;
      if (mode & 2) o.top_k = mode & 4 ? 3 : 40;
      if (mode & 4) o.min_p = 0.05;
      const bool adjusted = mode >= 8;
      std::vector<int32_t> counts(2 * vocabulary);  // token counts for two slots
      std::vector<float> bias(2 * vocabulary);
      TokenCounts seen;
      if (adjusted) {
        o.repetition_penalty = 1.2;
        o.presence_penalty = 0.3;
        o.frequency_penalty = 0.2;
        for (int n = 0; n < 30; ++n) {
          const size_t id = random() % vocabulary;
          if (n % 2 == 1) {
            ++seen[static_cast<int64_t>(id)].prompt;
            counts[vocabulary + id] |= kInPrompt;
          } else {
            ++seen[static_cast<int64_t>(id)].text;
            ++counts[vocabulary + id];
          }
        }
        o.logit_bias = {{5, 3.0F}, {7, -100.0F}};
        bias[vocabulary + 5] = 3;
        bias[vocabulary + 7] = -100;
      }
      Sampler sampler(o);
      for (int64_t n = 0; n < 3; ++n) {
        const int64_t expected = sampler.sample(logits, seen);
        EXPECT_EQ(sampled(logits, o, n, adjusted ? &counts : nullptr, &bias), expected)
            << vocabulary << " tokens, mode " << mode << ", draw " << n;
        ++seen[expected].text;
      }
    }
  }
}

// For all logits and options, the token is in the vocabulary or -1.
TEST(Step, SampleTokens_StaysInVocabulary) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits(100, 0.5F);
  logits[3] = 2;
  EXPECT_EQ(sampled(logits, {.temperature = 1e-40, .seed = 1}), 3);
  EXPECT_EQ(sampled(logits, {.temperature = 1e-38, .top_p = 0.5, .seed = 1}), 3);
  logits[4] = -kInfinity;
  EXPECT_EQ(sampled(logits, {.temperature = 0.01, .seed = 1}), 3);
  logits[5] = kInfinity;
  EXPECT_EQ(sampled(logits, {.temperature = 1, .seed = 1}), -1);
  logits[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampled(logits, {.temperature = 0}), -1);
  EXPECT_EQ(sampled(std::vector<float>(100, -kInfinity), {.temperature = 1, .top_k = 5, .seed = 1}), -1);
}

}  // namespace
}  // namespace lazy::ops::cuda

namespace lazy::kernels {
namespace {

// Runs the same sequence in batches of different sizes, with a block table of minimum width and with a wide one. In the
// large batch, one GPU block processes all keys of a tile of query rows (by_tile), unless statistics are requested or a
// group of 16 keys is on two pages.
TEST(Step, DecodeAttention_IsIndependentOfBatchAndCapacity) {
  constexpr int64_t kHeads = 4, kFew = 3, kBias = 70;
  struct Case {
    Normalizer normalizer;
    int64_t length, dim = 64, page = 16, kv_heads = 2, window = -1;
  };
  for (const auto& [normalizer, length, kDim, kPage, kKvHeads, window] :
       {Case{Normalizer::softmax, 1}, Case{Normalizer::elastic, 70}, Case{Normalizer::entmax15, 70},
        Case{Normalizer::entmax15, 700}, Case{Normalizer::sigmoid, 200}, Case{Normalizer::elastic, 700},
        Case{Normalizer::elastic, 700, 64, 8}, Case{Normalizer::softmax, 300, 128, 48},
        Case{Normalizer::softmax, 1, 64, 16, 4}, Case{Normalizer::elastic, 700, 64, 16, 4},
        Case{Normalizer::softmax_sink, 300, 128, 48, 4, 130}, Case{Normalizer::elastic_sink, 700},
        Case{Normalizer::elastic_sink, 300, 128, 48, 4, 130}, Case{Normalizer::softmax, 2200, 64, 16, 4}}) {
    const int64_t pages = (length + kPage - 1) / kPage;
    const int64_t kMany = 256 / kKvHeads, kSome = 200 / kKvHeads;  // only kMany gives enough tiles for by_tile
    const auto halves = [](int64_t size, uint32_t seed) { return ops::cuda::random_halves(size, 1, seed); };
    const auto k = halves((pages + 1) * kPage * kKvHeads * kDim, 1),
               v = halves((pages + 1) * kPage * kKvHeads * kDim, 2), q = halves(kMany * kHeads * kDim, 3);
    const std::vector<float> tau(kHeads, -1), sink(kHeads, 0.5F), bias(kHeads * kBias, 0.3F);
    const auto run = [&](int64_t batch, int64_t width, bool with_stats = false) {
      std::vector<int64_t> table(static_cast<size_t>(batch * width)), lengths(static_cast<size_t>(batch), length);
      for (int64_t n = 0; n < batch; ++n) {
        if (n % 5 == 4) lengths[static_cast<size_t>(n)] = (length * n + kMany - 1) / kMany;
        for (int64_t page = 0; page < pages; ++page)
          table[static_cast<size_t>(n * width + page)] = 1 + (page * (n + 1)) % pages;
      }
      std::vector<__nv_bfloat16> out(static_cast<size_t>(batch * kHeads * kDim));
      std::vector<float> stats(static_cast<size_t>(3 * batch * kHeads));
      Problem p;
      p.dtype = DType::bf16;
      p.normalizer = normalizer;
      p.batch = batch;
      p.q_length = 1;
      p.heads = kHeads;
      p.kv_heads = kKvHeads;
      p.head_dim = p.value_dim = kDim;
      p.scale = 0.125;
      Decode<float> a{};
      a.q = {q.data(), kHeads * kDim, kHeads * kDim, kDim, 1};
      a.k = {k.data(), kPage * kKvHeads * kDim, kKvHeads * kDim, kDim, 1};
      a.v = {v.data(), kPage * kKvHeads * kDim, kKvHeads * kDim, kDim, 1};
      a.out = {out.data(), kHeads * kDim, kHeads * kDim, kDim, 1};
      p.window = window;
      if (traits(normalizer).takes_tau) a.tau = tau.data();
      if (traits(normalizer).takes_sink) a.sink = sink.data();
      if (kKvHeads == kHeads) p.bias_window = kBias, a.distance_bias = bias.data();
      if (with_stats) a.stats = stats.data();
      a.lengths = lengths.data();
      a.block_table = table.data();
      a.table_width = width;
      a.page_size = kPage;
      const CacheSize cache{width * kPage, pages + 1};
      const test::DeviceMemory workspace(decode_step_workspace_cuda(p, cache));
      CudaCall call;
      call.workspace = workspace.get();
      decode_step_cuda(p, a, cache, call);
      std::vector<uint16_t> bits;
      for (const __nv_bfloat16 x : out) bits.push_back(x.bits);
      return bits;
    };
    const std::vector<uint16_t> many = run(kMany, pages), few = run(kFew, pages), alone = run(1, pages);
    SCOPED_TRACE(testing::Message() << name(normalizer) << ", " << length << " keys, head size " << kDim
                                    << ", pages of " << kPage);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), many.begin()));
    EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
    const std::vector<uint16_t> some = run(kSome, pages);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), many.begin()));
    EXPECT_EQ(run(1, 2048), alone);
    EXPECT_EQ(run(kMany, pages, true), many);
  }
}

}  // namespace
}  // namespace lazy::kernels
