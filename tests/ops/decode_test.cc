// Tests of the operator lazy::decode: its results for a cache equal the results of lazy::attention, and errors are
// clear. tests/attention/decode_test.cc checks the numerical results of the kernels.
#include "ops/decode.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/attention.h"
#include "ops/attention_weights.h"
#include "ops/device.h"
#include "ops/torch_error_of.h"

namespace lazy::ops {

namespace {

struct DecodeOperator : testing::Test {
  static at::Tensor here(const at::Tensor& t) { return t.to(test::test_device()); }
  at::Tensor q = here(at::randn({2, 3, 4, 16})), k = here(at::randn({2, 40, 2, 16})),
             v = here(at::randn({2, 40, 2, 8}));
  at::Tensor lengths = here(at::full({2}, 40, at::kInt)), bias = here(at::randn({4, 5})),
             tau = here(at::full({4}, -1.0));
  AttentionOptions options;
};

TEST_F(DecodeOperator, Decode_MatchesAttention) {
  options.return_score_stats = true;
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    options.softcap = type == at::kHalf ? 0 : 1.5;
    if (type == at::kDouble && q.is_cuda()) continue;  // only the CPU supports float64
    const auto parameters = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto t = [&](const at::Tensor& x) { return x.to(type); };
    const auto [out, lse, stats] = decode(t(q), t(k), t(v), lengths, bias.to(parameters), tau.to(parameters), options);
    const auto [out_a, lse_a, stats_a] = attention(t(q), t(k), t(v), bias.to(parameters), tau.to(parameters), options);
    EXPECT_EQ(out.sizes(), out_a.sizes());
    EXPECT_EQ(out.scalar_type(), type);
    // The tolerance covers different orders of adding some 40 terms of about 1, and rounding to the type.
    const double rounding = type == at::kDouble  ? 0x1p-50
                            : type == at::kFloat ? 0x1p-18
                            : type == at::kHalf  ? 0x1p-9
                                                 : 0x1p-6;
    EXPECT_TRUE(at::allclose(out, out_a, rounding, rounding)) << type;
    EXPECT_TRUE(at::allclose(lse, lse_a, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(stats, stats_a, 1e-5, 1e-5));
  }
}

// The operator must report as many rows of V as there are keys with a nonzero weight in the float64 reference
// implementation. Checked for one, two and three query heads per key-value head.
TEST_F(DecodeOperator, ValueRowCount_CountsRowsOfVThatAreRead) {
  if (q.is_cuda()) GTEST_SKIP() << "rows of V are counted only on the CPU";
  for (const int64_t kv_heads : {4, 2, 1}) {
    const at::Tensor queries = 2 * at::randn({2, 3, kv_heads == 1 ? 3 : 4, 16}),
                     keys = 2 * at::randn({2, 700, kv_heads, 16}), values = at::randn({2, 700, kv_heads, 8}),
                     own = at::full({queries.size(2)}, -1.0);
    const at::Tensor held = at::tensor({700L, 41L});
    const auto run = [&] { return decode(queries, keys, values, held, {}, own, options); };
    int64_t expected = 0;
    for (int64_t b = 0; b < 2; ++b) {
      const int64_t length = held[b].item<int64_t>();
      const AttentionTerms exact{options, {}, own.to(at::kDouble)};
      const at::Tensor k_of = keys.narrow(0, b, 1).narrow(1, 0, length).to(at::kDouble);
      const at::Tensor scores = attention_scores(queries.narrow(0, b, 1).to(at::kDouble), k_of, exact, length - 3);
      const at::Tensor weights = normalized_weights(scores, exact);
      const at::Tensor read = weights.ne(0).unflatten(1, {kv_heads, -1}).any(3).any(2);
      expected += read.sum().item<int64_t>();
    }
    EXPECT_GT(expected, 0);
    EXPECT_LT(expected, kv_heads * 741);
    const at::Tensor before = std::get<0>(run());
    {
      const ValueRowCount count;
      EXPECT_TRUE(at::equal(std::get<0>(run()), before));
      EXPECT_EQ(count.rows(), expected) << kv_heads;
      run();
      EXPECT_EQ(count.rows(), 2 * expected);
      EXPECT_THAT(test::torch_error_of([] { ValueRowCount second; }), Names({"ValueRowCount"}));
      const auto in_float64 = [&] {
        decode(queries.to(at::kDouble), keys.to(at::kDouble), values.to(at::kDouble), held, {}, own.to(at::kDouble),
               options);
      };
      EXPECT_THAT(test::torch_error_of(in_float64), Names({"lazy::decode", "float32", "float64"}));
    }
    EXPECT_EQ(ValueRowCount::current(), nullptr);
  }
}

TEST_F(DecodeOperator, PagedCache_MatchesContiguousCache) {
  const at::Tensor table = here(at::tensor({3L, 0L, 5L, 4L, 1L, 2L}).view({2, 3}));
  at::Tensor k_pages = at::full({6, 16, 2, 16}, NAN, k.options()), v_pages = at::full({6, 16, 2, 8}, NAN, v.options());
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t n = 0; n < 3; ++n) {
      const int64_t count = std::min<int64_t>(16, 40 - 16 * n), page = table[b][n].item<int64_t>();
      k_pages[page].narrow(0, 0, count).copy_(k[b].narrow(0, 16 * n, count));
      v_pages[page].narrow(0, 0, count).copy_(v[b].narrow(0, 16 * n, count));
    }
  }
  const auto contiguous = std::get<0>(decode(q, k, v, lengths, bias, tau, options));
  EXPECT_TRUE(at::equal(contiguous, std::get<0>(decode(q, k_pages, v_pages, lengths, bias, tau, options, table))));
  EXPECT_TRUE(
      at::equal(contiguous, std::get<0>(decode(q, k_pages, v_pages, lengths, bias, tau, options, table.to(at::kInt)))));
}

TEST_F(DecodeOperator, InvalidArguments_AreNamedInError) {
  const auto with = [&](const at::Tensor& l, const at::Tensor& table = {}, const at::Tensor& count = {}) {
    const auto there = [](const at::Tensor& t) { return t.defined() ? here(t) : t; };
    return test::torch_error_of([&] { decode(q, k, v, there(l), bias, tau, options, there(table), there(count)); });
  };
  EXPECT_THAT(with(at::full({3}, 4, at::kInt)), Names({"lazy::decode", "cache_lengths", "batch", 2, "[3]"}));
  EXPECT_THAT(with(at::full({2}, 4.0)), Names({"lazy::decode", "cache_lengths", "int32", "int64", "Float"}));
  EXPECT_THAT(with(lengths, at::zeros({2, 1})), Names({"lazy::decode", "block_table", "batch", "pages", "Float"}));
  EXPECT_THAT(test::torch_error_of([&] { decode(q, k.narrow(0, 0, 1), v, lengths, bias, tau, options); }),
              Names({"lazy::decode", "k", "batch", 2, std::string("[1, 40, 2, 16]")}));
  EXPECT_THAT(test::torch_error_of([&] { decode(q.to(at::kInt), k, v, lengths, bias, tau, options); }),
              Names({"lazy::decode", "Int"}));
  // Entries after the length are not read, so invalid pages and NaN have no effect.
  const at::Tensor wild = here(at::tensor({0L, -7L, 1L, 1000000L}).view({2, 2}));
  EXPECT_NO_THROW(decode(q, k, v, lengths, bias, tau, options, wild));
  if (q.is_cuda()) return;  // on a GPU, the operator does not check lengths and page indices before the kernel runs
  EXPECT_THAT(with(at::full({2}, 41, at::kInt)),
              Names({"lazy::decode", "cache_lengths", 0, 40, "cache_lengths[0]", 41}));
  EXPECT_THAT(with(at::full({2}, -1, at::kInt)), Names({"lazy::decode", "cache_lengths[0]", -1}));
  EXPECT_THAT(with(lengths, {}, at::full({2}, 2, at::kInt)),
              Names({"lazy::decode", "visible_count", 3, "visible_count[0]", 2}));
  const at::Tensor pages = at::tensor({0L, 2L}).view({2, 1});
  EXPECT_THAT(with(lengths, pages), Names({"lazy::decode", "block_table", 0, 1, "block_table[1][0]", 2}));
}

TEST_F(DecodeOperator, Gradient_Throws) {
  const at::Tensor leaf = q.clone().set_requires_grad(true);
  const at::Tensor out = std::get<0>(decode(leaf, k, v, lengths, bias, tau, options));
  EXPECT_THAT(test::torch_error_of([&] { torch::autograd::grad({out.sum()}, {leaf}); }), Names({"lazy::decode"}));
}

}  // namespace

}  // namespace lazy::ops
