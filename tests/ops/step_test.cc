// Tests of the kernels of decode steps. On a GPU, fused kernels are compared with the separate operators, and sampling
// is compared with sampling on the CPU.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "ops/decode.h"
#include "ops/device.h"
#include "ops/kv_cache_write.h"
#include "ops/normalizers.h"
#include "ops/pinned_copy.h"
#include "ops/recorder.h"
#include "ops/rms_norm.h"
#include "ops/sample_tokens.h"
#include "ops/skinny_gemm.h"
#include "ops/swiglu.h"

namespace lazy::ops {
namespace {

using test::test_device;

at::Tensor step_random(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kBFloat16, double scale = 1) {
  const at::Tensor x = at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kFloat));
  return (x * scale).to(test_device(), type);
}

double step_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kDouble);
  return ((found.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

class StepGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().is_cuda()) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  }
};

TEST_F(StepGpu, ProductWithNorm_MatchesSeparateOperators) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t in : {64, 264, 1024, 2816}) {
      const int64_t out = 200;
      const at::Tensor W = step_random({2 * out, in}, 1, type, 0.05),
                       weight = 1 + step_random({in}, 2, at::kFloat, 0.2);
      const at::Tensor all = step_random({256, in}, 3, type), additions = step_random({256, 2 * out}, 4, type);
      at::Tensor largest;
      for (const int64_t rows : {256, 70, 32, 17, 9, 8, 3, 1}) {
        const at::Tensor x = all.narrow(0, 0, rows), add = additions.narrow(0, 0, rows),
                         normed = rms_norm(x, weight, 1e-5);
        const SkinnyGemmInput input{.x = x, .norm_weight = weight, .eps = 1e-5};
        const at::Tensor wide = skinny_gemm(input, W, false, true);
        // Computed in fp32, because the 16-bit product of PyTorch fails with an illegal access under racecheck.
        const at::Tensor expected = at::linear(normed.to(at::kFloat), W.to(at::kFloat));
        EXPECT_LE(step_error(wide, expected), 1e-2);
        const auto halves = expected.to(type).chunk(2, 1);
        EXPECT_LE(step_error(skinny_gemm(input, W, true), swiglu(halves[0], halves[1])), 2e-2);
        const at::Tensor plain = skinny_linear(x, W);
        EXPECT_LE(step_error(plain, at::linear(x.to(at::kFloat), W.to(at::kFloat))), 1e-2);
        EXPECT_TRUE(at::equal(skinny_gemm({.x = x, .add = add}, W), plain + add));
        // The kernel must also accept an x that is not aligned to 16 bytes.
        const at::Tensor shifted = at::empty({x.numel() + 3}, x.options()).narrow(0, 3, x.numel()).view(x.sizes());
        EXPECT_TRUE(at::equal(skinny_linear(shifted.copy_(x), W), plain));
        // With fewer rows, each row must be bitwise equal to the same row in the product of 256 rows.
        if (!largest.defined()) largest = wide;
        EXPECT_TRUE(at::equal(wide, largest.narrow(0, 0, rows))) << rows << " rows of " << in;
      }
    }
  }
}

// Matrix shapes of real models, chosen so that each one uses a different tile size.
TEST_F(StepGpu, TiledProducts_MatchProductsOfEightRows) {
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
           {1024, 3072}, {1024, 1024}, {1024, 5632}, {2816, 1024}, {1024, 32000}, {6912, 1000}, {1032, 2999}}) {
    const at::Tensor x = step_random({256, in}, 1), W = step_random({out, in}, 2, at::kBFloat16, 0.05),
                     weight = 1 + step_random({in}, 3, at::kFloat, 0.2);
    for (const auto& [norm, swiglu] : {std::pair{false, false}, {true, false}, {true, true}}) {
      if (swiglu && out % 2 != 0) continue;
      const auto product = [&](int64_t first, int64_t rows) {
        return skinny_gemm({.x = x.narrow(0, first, rows), .norm_weight = norm ? weight : at::Tensor()}, W, swiglu,
                           true);
      };
      std::vector<at::Tensor> parts;
      for (int64_t first = 0; first < 256; first += 8) parts.push_back(product(first, 8));
      const at::Tensor all = at::cat(parts);
      for (const int64_t rows : {9, 16, 31, 64, 65, 100, 128, 192, 256}) {
        EXPECT_TRUE(at::equal(product(256 - rows, rows), all.narrow(0, 256 - rows, rows)))
            << rows << " rows of " << in << ", " << out << " columns, norm " << norm << ", SwiGLU " << swiglu;
      }
    }
  }
}

// Covers small and large numbers of tiles, inner dimensions that need fewer steps and more steps than the kernel keeps
// in flight, and numbers of columns and chunks that are not multiples of the tile sizes.
TEST_F(StepGpu, SplitProducts_MatchProductsOfEightRows) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t in : {40, 520, 1288, 2312, 3080}) {
      const at::Tensor x = step_random({64, in}, 1, type), weight = 1 + step_random({in}, 2, at::kFloat, 0.2);
      for (const int64_t out : {50, 82, 1000, 2034, 3530}) {
        const at::Tensor W = step_random({out, in}, 3, type, 0.05), add = step_random({64, out}, 4, type);
        for (const bool norm : {false, true}) {
          for (const bool swiglu : {false, true}) {
            const bool wide = norm && !swiglu;  // without a norm and without swiglu, `add` is tested instead
            const auto product = [&](int64_t first, int64_t rows) {
              SkinnyGemmInput input{.x = x.narrow(0, first, rows), .eps = 1e-5};
              if (norm) input.norm_weight = weight;
              if (!wide && !swiglu) input.add = add.narrow(0, first, rows);
              return skinny_gemm(input, W, swiglu, wide);
            };
            std::vector<at::Tensor> parts;
            for (int64_t first = 0; first < 64; first += 8) parts.push_back(product(first, 8));
            const at::Tensor all = at::cat(parts);
            for (const int64_t rows : {9, 16, 17, 27, 32, 33, 64}) {
              EXPECT_TRUE(at::equal(product(64 - rows, rows), all.narrow(0, 64 - rows, rows)))
                  << rows << " rows of " << in << ", " << out << " columns, norm " << norm << ", SwiGLU " << swiglu;
            }
          }
        }
      }
    }
  }
}

// joint: tensor of shape (tokens, 1, heads + 2 kv_heads, head_dim) that contains the heads of q, k and v in this order.
PageWrite page_write(const at::Tensor& joint, int64_t kv_heads, int64_t rotary, bool interleaved) {
  const int64_t tokens = joint.size(0), heads = joint.size(2) - 2 * kv_heads, pages = tokens * 20 / 16 + 1;
  PageWrite write;
  write.q = joint.narrow(2, 0, heads);
  write.k = joint.narrow(2, heads, kv_heads);
  write.v = joint.narrow(2, heads + kv_heads, kv_heads);
  write.keys = at::zeros({pages, 16, kv_heads, joint.size(3)}, joint.options());
  write.values = at::zeros_like(write.keys);
  write.slots = (at::arange(tokens - 1, -1, -1, at::kLong) * 20 + 3).to(test_device());
  write.rope_base = 10000;
  write.rope = {.rotary_dim = rotary, .interleaved = interleaved};
  // Some positions are beyond the table of RoPE angles.
  write.rope.positions = ((at::arange(tokens, at::kLong) * 6661 + 8191) % 20001).view({tokens, 1}).to(test_device());
  return write;
}

// Compares the fused kernel (QKV projection, RoPE and write to the KV cache) with the separate kernels, for the shapes
// of real models. The results must be bitwise equal.
TEST_F(StepGpu, QkvProductWithCacheWrite_MatchesSeparateKernels) {
  struct Shape {
    int64_t in, heads, kv_heads, dim;
  };
  for (const auto& [in, heads, kv_heads, dim] :
       {Shape{264, 8, 2, 64}, Shape{1024, 16, 16, 64}, Shape{1024, 16, 4, 128}, Shape{2048, 32, 32, 128}}) {
    const int64_t all = heads + 2 * kv_heads;
    const at::Tensor weight = 1 + step_random({in}, 2, at::kFloat, 0.2);
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      const at::Tensor W = step_random({all * dim, in}, 5, type, 0.05);
      for (const int64_t rows : {1, 3, 8, 9, 16, 17, 27, 32, 33, 64, 65, 70, 100, 128, 192, 256}) {
        const SkinnyGemmInput input{.x = step_random({rows, in}, 3, type), .norm_weight = weight, .eps = 1e-5};
        const at::Tensor joint = skinny_gemm(input, W).view({rows, 1, all, dim});
        for (const int64_t rotary : {dim, dim / 2}) {
          for (const bool interleaved : {false, true}) {
            const PageWrite apart = page_write(joint, kv_heads, rotary, interleaved),
                            at_once = page_write(joint, kv_heads, rotary, interleaved);
            EXPECT_TRUE(at::equal(skinny_gemm_kv_cache_write(input, W, at_once), kv_cache_write(apart)))
                << rows << " rows of " << in << ", " << heads << " heads, interleaved " << interleaved;
            EXPECT_TRUE(at::equal(at_once.keys, apart.keys));
            EXPECT_TRUE(at::equal(at_once.values, apart.values));
          }
        }
      }
    }
  }
}

TEST_F(StepGpu, KvCacheWrite_MatchesRope) {
  for (const bool interleaved : {false, true}) {
    for (const int64_t rotary : {64, 32}) {
      const PageWrite write = page_write(step_random({5, 1, 12, 64}, 1), 2, rotary, interleaved);
      const at::Tensor q = kv_cache_write(write);
      EXPECT_TRUE(at::equal(q, rope(write.q, 10000, 0, write.rope)));
      EXPECT_TRUE(at::equal(write.keys.flatten(0, 1).index_select(0, write.slots),
                            rope(write.k, 10000, 0, write.rope).flatten(0, 1)));
      EXPECT_TRUE(at::equal(write.values.flatten(0, 1).index_select(0, write.slots), write.v.flatten(0, 1)));
      EXPECT_EQ(write.keys.count_nonzero().item<int64_t>(), 5 * 2 * 64);
    }
  }
}

// Each key and value to gather has a source: a slot of a page, a token of this step, or zeros. Covers all three, with
// head sizes that allow aligned vector accesses and that do not.
TEST(KvCacheWrite, Gather_ReturnsKeysAndValuesOfAllSources) {
  std::vector<int64_t> sources;
  while (sources.size() < 1100)
    sources.insert(sources.end(), {in_pages(40), 2, 0, kZeros, in_pages(7), 4, kZeros, 1, in_pages(40)});
  const auto type = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  for (const int64_t dim : {64, 12}) {
    for (const bool interleaved : {false, true}) {
      PageWrite write = page_write(step_random({5, 1, 12, dim}, 1, type), 2, dim / 2, interleaved);
      write.keys.copy_(step_random(write.keys.sizes(), 2, type));
      write.values.copy_(step_random(write.values.sizes(), 3, type));
      PageWrite apart = write;
      apart.keys = write.keys.clone();
      apart.values = write.values.clone();
      const at::Tensor q = kv_cache_write(apart);
      const auto [found, keys, values] =
          kv_cache_write_and_gather(write, at::tensor(sources, at::kLong).to(test_device()));
      EXPECT_TRUE(at::equal(found, q));
      for (size_t n = 0; n < sources.size(); n += 121) {  // with this stride, all three kinds of sources are compared
        const int64_t source = sources[n], place = source < kZeros    ? in_pages(source)
                                                   : source == kZeros ? 0
                                                                      : write.slots[source].item<int64_t>();
        const auto expect = [&](const at::Tensor& row, const at::Tensor& pages) {
          const at::Tensor there = pages.flatten(0, 1)[place];
          EXPECT_TRUE(at::equal(row, source == kZeros ? at::zeros_like(there) : there))
              << "row " << n << ", " << dim << ", interleaved " << interleaved;
        };
        expect(keys[static_cast<int64_t>(n)], apart.keys);
        expect(values[static_cast<int64_t>(n)], apart.values);
        if (source < 0) continue;
        EXPECT_TRUE(at::equal(write.keys.flatten(0, 1)[place], apart.keys.flatten(0, 1)[place]));
        EXPECT_TRUE(at::equal(write.values.flatten(0, 1)[place], apart.values.flatten(0, 1)[place]));
      }
    }
  }
}

// One query per kv head. The batch sizes select both configurations of decode_row.cu, and the kernels for small
// batches.
TEST_F(StepGpu, InvariantDecode_DoesNotDependOnBatchSize) {
  for (const char* normalizer : {"softmax", "elastic", "softmax_sink", "elastic_sink"}) {
    for (const int64_t dim : {64, 128}) {
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
        const int64_t heads = 16, texts = 200, page = 48, pages = 30;
        const at::Tensor k = step_random({4 * pages, page, heads, dim}, 1, type),
                         v = step_random({4 * pages, page, heads, dim}, 2, type),
                         q = step_random({texts, 1, heads, dim}, 3, type),
                         bias = step_random({heads, 300}, 4, at::kFloat), tau = step_random({heads}, 5, at::kFloat) - 1;
        const at::Tensor numbers = at::arange(texts, at::kLong);
        const at::Tensor lengths = (1 + numbers * 97 % (pages * page - 1)).to(test_device());
        const at::Tensor table =
            ((at::arange(pages, at::kLong).unsqueeze(0) * 7 + numbers.unsqueeze(1) * 11) % (4 * pages))
                .to(test_device());
        AttentionOptions options;
        options.normalizer = normalizer;
        const NormalizerTraits& traits = kernels::traits(normalizer_from_name(normalizer).value());
        if (traits.takes_sink) options.sink = step_random({heads}, 6, at::kFloat);
        const auto run = [&](int64_t first, int64_t count) {
          return std::get<0>(decode(q.narrow(0, first, count), k, v, lengths.narrow(0, first, count), bias,
                                    traits.takes_tau ? tau : at::Tensor(), options, table.narrow(0, first, count), {},
                                    /*invariant=*/true));
        };
        const at::Tensor all = run(0, texts);
        for (const int64_t count : {3, 20}) {
          for (int64_t first = 0; first + count <= texts; first += 60) {
            EXPECT_TRUE(at::equal(run(first, count), all.narrow(0, first, count)))
                << normalizer << ", heads of " << dim << ", " << count << " sequences from number " << first << " on";
          }
        }
      }
    }
  }
}

// Compares a sequence alone with the same sequence in a batch, and a block table of minimum width with a wide one.
TEST_F(StepGpu, InvariantDecode_DoesNotDependOnBatchOrCapacity) {
  for (const char* normalizer : {"softmax", "elastic", "entmax15"}) {
    for (const int64_t length : {1, 40, 700, 5000}) {
      const int64_t pages = (length + 15) / 16;
      const at::Tensor k = step_random({2 * pages + 1, 16, 4, 64}, 1), v = step_random({2 * pages + 1, 16, 4, 64}, 2),
                       q = step_random({6, 1, 8, 64}, 3), tau = at::full({8}, -1.0, q.options().dtype(at::kFloat));
      const at::Tensor table = at::arange(1, pages + 1, at::kLong).repeat({6, 1});
      AttentionOptions options;
      options.normalizer = normalizer;
      const auto run = [&](int64_t batch, int64_t width) {
        const at::Tensor wide = at::constant_pad_nd(table.narrow(0, 0, batch), {0, width - pages});
        const at::Tensor lengths = at::full({batch}, length, q.options().dtype(at::kLong));
        return std::get<0>(decode(q.narrow(0, 0, batch), k, v, lengths, {},
                                  std::string(normalizer) == "elastic" ? tau : at::Tensor(), options,
                                  wide.to(test_device()), {}, /*invariant=*/true));
      };
      const at::Tensor all = run(6, pages);
      EXPECT_TRUE(at::equal(run(1, pages), all.narrow(0, 0, 1))) << normalizer << " " << length;
      EXPECT_TRUE(at::equal(run(6, 2048), all)) << normalizer << " " << length;
      EXPECT_TRUE(at::equal(run(2, 4096), all.narrow(0, 0, 2))) << normalizer << " " << length;
    }
  }
}

TEST(PinnedCopy, Copy_TransfersAllWordsInBothDirections) {
  const bool pinned = test_device().is_cuda();
  for (const int64_t words : {1, 255, 1024, 70001}) {
    const at::Tensor from = at::arange(words, at::TensorOptions().dtype(at::kLong).pinned_memory(pinned)) * 7919;
    const at::Tensor sent = pinned ? from.pin_memory() : from;
    const at::Tensor there = at::zeros({words}, from.options().pinned_memory(false).device(test_device()));
    const at::Tensor back = at::zeros({words}, sent.options().pinned_memory(pinned));
    pinned_copy(there, sent);
    pinned_copy(back, there);
    EXPECT_TRUE(at::equal(there.cpu(), from)) << words;  // reading the values waits for both copies
    EXPECT_TRUE(at::equal(back, from)) << words;
  }
  const at::Tensor one = at::zeros({2}, at::kLong);
  EXPECT_THROW(pinned_copy(one, at::zeros({3}, at::kLong)), c10::Error);
  EXPECT_THROW(pinned_copy(at::zeros({3}, at::kFloat), at::zeros({3}, at::kFloat)), c10::Error);
  if (pinned) {
    EXPECT_THROW(pinned_copy(one.to(test_device()), one), c10::Error);
  }
}

// For any logits and options, the token is in the vocabulary or -1.
TEST(SampleTokens, Token_IsInVocabularyOrMinusOne) {
  const auto sampled = [](const at::Tensor& logits, const SampleRow& how) {
    const auto number = at::TensorOptions().dtype(at::kLong).device(test_device());
    at::Tensor numbers = at::zeros({1, kSampleNumberCount}, at::kLong);
    how.write(numbers.mutable_data_ptr<int64_t>());
    SampleInputs in;
    in.logits = logits.unsqueeze(0).to(test_device());
    in.numbers = numbers.to(test_device());
    in.slots = at::zeros({1}, number);
    in.last = at::zeros({1}, number);
    in.tokens = at::full({1}, -7, number);
    sample_tokens(in);
    EXPECT_EQ(in.last.item<int64_t>(), std::max<int64_t>(in.tokens.item<int64_t>(), 0));
    return in.tokens.item<int64_t>();
  };
  at::Tensor logits = at::full({100}, 0.5);
  logits[3] = 2;
  EXPECT_EQ(sampled(logits, {.temperature = 1e-40F, .seed = 1}), 3);
  EXPECT_EQ(sampled(logits, {.temperature = 1e-38F, .top_p = 0.5, .seed = 1}), 3);
  logits[4] = -INFINITY;
  EXPECT_EQ(sampled(logits, {.temperature = 0.01F, .seed = 1}), 3);
  logits[5] = INFINITY;
  EXPECT_EQ(sampled(logits, {.temperature = 1, .seed = 1}), -1);
  EXPECT_EQ(sampled(at::full({100}, -INFINITY), {.temperature = 1, .top_k = 5, .seed = 1}), -1);
  EXPECT_EQ(sampled(at::full({100}, NAN), {.temperature = 0}), -1);
}

struct Case {
  int64_t vocabulary;
  double spread;
};

TEST_F(StepGpu, SampledTokens_MatchCpu) {
  for (const auto& [vocabulary, spread] : {Case{100, 2.0}, Case{32000, 0.5}, Case{32000, 4.0}, Case{151936, 3.0}}) {
    constexpr int64_t kRows = 24;
    SampleInputs in;
    in.logits = step_random({kRows, vocabulary}, 5, at::kFloat, spread);
    in.logits[7][3] = NAN;
    in.logits[9][3] = INFINITY;
    in.numbers = at::zeros({kRows, kSampleNumberCount}, at::kLong);
    in.slots = at::arange(kRows, at::kLong);
    for (int64_t row = 0; row < kRows; ++row) {
      const SampleRow how{.temperature = row % 4 == 0 ? 0.0F
                                         : row == 10  ? 1e-40F
                                                      : 0.7F + 0.1F * static_cast<float>(row % 5),
                          .top_k = row % 3 == 0 ? 0 : 40,
                          .top_p = row % 2 == 0 ? 1.0F : 0.9F,
                          .min_p = row % 5 == 0 ? 0.02F : 0.0F,
                          .seed = static_cast<uint64_t>(1000 * row),
                          .draw = row,
                          .adjusted = row > 11,
                          .repetition_penalty = 1.2F,
                          .presence_penalty = 0.3F,
                          .frequency_penalty = 0.2F};
      how.write(in.numbers.mutable_data_ptr<int64_t>() + row * kSampleNumberCount);
    }
    in.counts = at::randint(0, 3, {kRows, vocabulary}, at::detail::createCPUGenerator(6), at::kInt);
    in.bias = at::randn({kRows, vocabulary}, at::detail::createCPUGenerator(7), at::TensorOptions());
    in.last = at::zeros({kRows}, at::kLong);
    in.tokens = at::zeros({kRows}, at::kLong);
    SampleInputs here = in;
    here.logits = in.logits.cpu();
    here.counts = in.counts.clone();
    here.last = in.last.clone();
    here.tokens = in.tokens.clone();
    sample_tokens(here);
    for (at::Tensor* t : {&in.numbers, &in.slots, &in.counts, &in.bias, &in.last, &in.tokens})
      *t = t->to(test_device());
    sample_tokens(in);
    EXPECT_TRUE(at::equal(in.tokens.cpu(), here.tokens)) << vocabulary << "\n" << in.tokens << here.tokens;
    EXPECT_EQ(here.tokens[7].item<int64_t>(), -1);
    EXPECT_EQ(here.tokens[9].item<int64_t>(), -1);
    EXPECT_TRUE(at::equal(in.last.cpu(), here.last));
    EXPECT_TRUE(at::equal(in.counts.cpu(), here.counts));
  }
}

// A recorded function reads its input tensors at the time of each call, not at the time of the recording.
TEST(Recorder, RecordedWork_RunsOnEachCall) {
  if (test_device().is_cuda())
    GTEST_SKIP() << "on a GPU, recording needs a separate stream; the tests of DecodeRunner cover this case";
  const at::Tensor x = at::zeros({3});
  const auto again = make_recorder(test_device())->record([&] { x.add_(1); });
  again();
  again();
  EXPECT_EQ(x.sum().item<float>(), 6);
}

}  // namespace
}  // namespace lazy::ops
