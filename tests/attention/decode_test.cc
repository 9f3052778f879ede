// Tests of decoding against the reference, with contiguous and paged caches whose unused parts are NaN, for every
// normalizer and type.
#include "lazy/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "case.h"
#include "cuda/run_cuda.h"
#include "device.h"

namespace lazy::kernels::test {

namespace {

constexpr int64_t kPage = 16;

// A KV cache as a server stores it: contiguous per sequence, or paged with a block table.
struct Cache {
  Tensor k, v;  // first two axes: (batch, capacity), or (pages, kPage) if paged
  std::vector<int64_t> lengths, table, counts;
  int64_t width = 0;
};

Tensor poisoned(int64_t b, int64_t t, int64_t h, int64_t d) {
  Tensor x(b, t, h, d);
  std::fill(x.data.begin(), x.data.end(), std::numeric_limits<double>::quiet_NaN());
  return x;
}

// Creates a cache in which sequence b has the first lengths[b] keys of the inputs. Pages are in a scrambled order.
Cache make_cache(const Shape& s, const Inputs& in, const std::vector<int64_t>& lengths, bool paged) {
  Cache c;
  c.lengths = lengths;
  c.width = (s.k_length + kPage - 1) / kPage + 1;
  const int64_t pages = s.batch * c.width;
  c.k = paged ? poisoned(pages, kPage, s.kv_heads, s.head_dim)
              : poisoned(s.batch, s.k_length + 5, s.kv_heads, s.head_dim);
  c.v = paged ? poisoned(pages, kPage, s.kv_heads, s.value_dim)
              : poisoned(s.batch, s.k_length + 5, s.kv_heads, s.value_dim);
  if (paged) {
    c.table.resize(pages);
    std::iota(c.table.begin(), c.table.end(), 0);
    std::shuffle(c.table.begin(), c.table.end(), std::mt19937(7));
  }
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t j = 0; j < lengths[b]; ++j) {
      const int64_t page = paged ? c.table[b * c.width + j / kPage] : b, token = paged ? j % kPage : j;
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        std::copy_n(in.k.row(b, j, h), s.head_dim, c.k.row(page, token, h));
        std::copy_n(in.v.row(b, j, h), s.value_dim, c.v.row(page, token, h));
      }
    }
  }
  return c;
}

template <typename Arguments>
void set_cache(Arguments& a, const Cache& c) {
  a.lengths = c.lengths.data();
  a.visible_counts = c.counts.empty() ? nullptr : c.counts.data();
  if (c.table.empty()) return;
  a.block_table = c.table.data();
  a.table_width = c.width;
  a.page_size = kPage;
}

Results empty_results(const Shape& s) {
  Results r;
  r.out = poisoned(s.batch, s.q_length, s.heads, s.value_dim);
  r.lse.assign(s.batch * s.heads * s.q_length, std::numeric_limits<double>::quiet_NaN());
  r.stats.assign(3 * r.lse.size(), std::numeric_limits<double>::quiet_NaN());
  r.score_stats.assign(2 * r.lse.size(), std::numeric_limits<double>::quiet_NaN());
  return r;
}

Results run_definition(const Shape& s, const Inputs& in, const Cache& c) {
  Problem p = make_problem(s);
  p.dtype = DType::f64;
  Results r = empty_results(s);
  Decode<double> a;
  auto pointer = [](const std::vector<double>& x) { return x.empty() ? nullptr : x.data(); };
  a.q = in.q.view();
  a.k = c.k.view();
  a.v = c.v.view();
  set_cache(a, c);
  a.distance_bias = pointer(in.distance_bias);
  a.tau = pointer(in.tau);
  a.sink = pointer(in.sink);
  a.alibi_slopes = pointer(in.alibi_slopes);
  a.out = r.out.view();
  a.lse = r.lse.data();
  a.stats = r.stats.data();
  a.score_stats = r.score_stats.data();
  reference::decode(p, a);
  return r;
}

size_t bytes_of(const Shape& s, const Tensor& x) {
  return x.data.size() * (s.layout == Layout::strided_dims ? 2 : 1) * (s.dtype == DType::f32 ? 4 : 2);
}

// kernel: used only on the GPU.
Results run_decode(const Shape& s, const Inputs& in, const Cache& c, int threads = 0,
                   CudaKernel kernel = CudaKernel::automatic, bool statistics = true) {
  Problem p = make_problem(s);
  p.threads = threads;
  Buffer q(in.q, s.dtype, s.layout), k(c.k, s.dtype, s.layout), v(c.v, s.dtype, s.layout);
  Results r = empty_results(s);
  Buffer out(r.out, s.dtype, s.layout);
  q.fill(in.q);
  k.fill(c.k);
  v.fill(c.v);
  auto narrow = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
  const std::vector<float> bias = narrow(in.distance_bias), tau = narrow(in.tau), sink = narrow(in.sink),
                           slopes = narrow(in.alibi_slopes);
  std::vector<float> lse = narrow(r.lse), stats = narrow(r.stats), scores = narrow(r.score_stats);
  auto pointer = [](const std::vector<float>& x) { return x.empty() ? nullptr : x.data(); };
  Decode<float> a;
  a.q = q.const_view();
  a.k = k.const_view();
  a.v = v.const_view();
  set_cache(a, c);
  a.distance_bias = pointer(bias);
  a.tau = pointer(tau);
  a.sink = pointer(sink);
  a.alibi_slopes = pointer(slopes);
  a.out = out.view();
  a.lse = lse.data();
  if (statistics) {
    a.stats = stats.data();
    a.score_stats = scores.data();
  }
  if (on_cuda()) {
    const CacheSize size{c.table.empty() ? c.k.tokens : c.width * kPage, c.k.batch};
    run_decode_cuda(p, a, size, {bytes_of(s, in.q), bytes_of(s, c.k), bytes_of(s, c.v), bytes_of(s, r.out)}, kernel);
  } else {
    decode(p, a);
  }
  r.out = out.read();
  r.lse.assign(lse.begin(), lse.end());
  r.stats.assign(stats.begin(), stats.end());
  r.score_stats.assign(scores.begin(), scores.end());
  return r;
}

bool same(const Results& x, const Results& y) {
  auto equal = [](const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
  };
  return equal(x.out.data, y.out.data) && equal(x.lse, y.lse) && equal(x.stats, y.stats) &&
         equal(x.score_stats, y.score_stats);
}

std::vector<int64_t> full(const Shape& s) { return std::vector<int64_t>(s.batch, s.k_length); }

class DecodeProduct : public testing::TestWithParam<std::tuple<DType, Normalizer>> {};

TEST_P(DecodeProduct, MatchesReference) {
  const auto [dtype, normalizer] = GetParam();
  TwoReferences comparison;
  uint64_t seed = 1;
  for (int64_t keys : {1, 2, 63, 111, 513, 1700}) {
    for (int64_t queries : {1, 2, 5}) {
      const auto n = static_cast<int64_t>(seed);
      Shape s;
      s.dtype = dtype;
      s.normalizer = normalizer;
      s.q_length = queries;
      s.k_length = keys;
      s.batch = 2;
      std::tie(s.heads, s.kv_heads) = std::array{std::pair{2, 2}, std::pair{4, 2}, std::pair{6, 1}}[n % 3];
      std::tie(s.head_dim, s.value_dim) =
          std::array{std::pair{64, 64}, std::pair{128, 128}, std::pair{40, 24}, std::pair{17, 33}}[n % 4];
      s.window = n % 5 == 3 ? 50 : -1;
      s.bias_window = std::array{0, 16, 600}[n / 3 % 3];
      s.alibi = n % 7 == 2;
      s.causal = n % 6 != 5;
      s.tau = std::array{-1.0, -30.0, 0.5, 0.0}[n / 2 % 4];
      s.softcap = std::array{0, 5, 0, 50}[n / 2 % 4];
      s.offset = n % 11 == 4 ? Offset::constant : Offset::per_visible;
      s.layout = static_cast<Layout>(n % 3);
      const Inputs in = make_inputs(s, seed++);
      const Results reference = run_reference(s, in), contiguous = run_decode(s, in, make_cache(s, in, full(s), false));
      ASSERT_TRUE(
          same(run_definition(s, in, make_cache(s, in, full(s), true)),
               {reference.out, {}, {}, {}, reference.lse, reference.stats, {}, {}, {}, {}, reference.score_stats}))
          << "decode and forward of the reference differ: " << s.text();
      ASSERT_TRUE(same(contiguous, run_decode(s, in, make_cache(s, in, full(s), true))))
          << "the paged cache gives different results: " << s.text();
      comparison.add(s, in, contiguous);
      if (on_cuda()) {
        ASSERT_TRUE(same(contiguous, run_decode(s, in, make_cache(s, in, full(s), false))))
            << "a second run gives different results: " << s.text();
        if (dtype != DType::f32) {
          comparison.add(s, in, run_decode(s, in, make_cache(s, in, full(s), true), 0, CudaKernel::plain));
        }
      }
      if (HasFailure()) return;
    }
  }
  comparison.check();
}

INSTANTIATE_TEST_SUITE_P(All, DecodeProduct,
                         testing::Combine(testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::ValuesIn(kAllNormalizers)),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
                         });

Shape long_shape() {
  Shape s;
  s.normalizer = Normalizer::elastic;
  s.batch = 3;
  s.q_length = 2;
  s.k_length = 3000;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_dim = s.value_dim = 64;
  s.bias_window = 100;
  return s;
}

TEST(Decode, Results_DoNotDependOnThreadCount) {
  const Shape s = long_shape();
  const Inputs in = make_inputs(s, 5);
  const Cache c = make_cache(s, in, {3000, 1234, 7}, false);
  const Results one = run_decode(s, in, c, 1);
  for (int threads : {2, 5}) EXPECT_TRUE(same(one, run_decode(s, in, c, threads)));
}

// The results of a sequence do not depend on the lengths of the remaining sequences. A sequence of length zero gives
// zeros.
TEST(Decode, SequencesOfDifferentLengths_AreIndependent) {
  const Shape s = long_shape();
  const Inputs in = make_inputs(s, 6);
  const Results all = run_decode(s, in, make_cache(s, in, {3000, 1, 0}, true));
  for (int64_t b = 0; b < 3; ++b) {
    std::vector<int64_t> lengths(3, 0);
    lengths[b] = std::array<int64_t, 3>{3000, 1, 0}[b];
    const Results alone = run_decode(s, in, make_cache(s, in, lengths, true));
    for (int64_t i = 0; i < s.q_length; ++i) {
      for (int64_t h = 0; h < s.heads; ++h) {
        EXPECT_EQ(std::memcmp(all.out.row(b, i, h), alone.out.row(b, i, h), 64 * sizeof(double)), 0)
            << b << ' ' << i << ' ' << h;
        // In the second sequence, the position of the first query is before the only key. At tau = -1 the output of a
        // row with one key is exactly zero.
        if (b > 0) {
          EXPECT_EQ(all.out.row(b, i, h)[0], 0);
        }
        const size_t index = (b * s.heads + h) * s.q_length + i;
        if (b == 2 || (b == 1 && i == 0)) {
          EXPECT_EQ(all.lse[index], -std::numeric_limits<double>::infinity());
        }
      }
    }
  }
}

// The values of keys whose weight is zero are not read: NaN in the values of every second page does not change the
// results, because the scores of the keys on these pages are far below the remaining scores.
TEST(Decode, ValuesOfDeadKeys_AreNotRead) {
  for (const NormalizerTraits& normalizer : kNormalizers) {
    if (!normalizer.takes_tau) continue;
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(normalizer.name) + " " + name(type));
      Shape s = long_shape();
      s.normalizer = normalizer.normalizer;
      s.dtype = type;
      s.q_length = 1;
      s.heads = s.kv_heads = 2;
      s.k_length = 600;
      s.bias_window = 0;
      Inputs in = make_inputs(s, 8);
      const auto for_each_dead_key = [&](const auto& change) {
        for (int64_t b = 0; b < s.batch; ++b) {
          for (int64_t key = 0; key < s.k_length; ++key) {
            for (int64_t h = 0; key / kPage % 2 == 1 && h < s.kv_heads; ++h) change(b, key, h);
          }
        }
      };
      for_each_dead_key([&](int64_t b, int64_t key, int64_t h) {
        for (int64_t d = 0; d < s.head_dim; ++d) in.k.row(b, key, h)[d] = -4 * in.q.row(b, 0, h)[d];
      });
      const Results expected = run_decode(s, in, make_cache(s, in, full(s), true));
      for (double x : expected.out.data) ASSERT_TRUE(std::isfinite(x));
      for_each_dead_key([&](int64_t b, int64_t key, int64_t h) {
        std::fill_n(in.v.row(b, key, h), s.value_dim, std::numeric_limits<double>::quiet_NaN());
      });
      EXPECT_TRUE(same(expected, run_decode(s, in, make_cache(s, in, full(s), true))));
    }
  }
}

// If keys were evicted from a cache, the caller passes visible_counts: the number of keys that each sequence would see
// without the eviction.
TEST(Decode, VisibleCounts_ReplaceTheNumberOfKeys) {
  Shape s = long_shape();
  s.k_length = 40;
  const Inputs in = make_inputs(s, 7);
  Cache c = make_cache(s, in, full(s), false);
  c.counts = {40, 41, 5000};
  const Results definition = run_definition(s, in, c), fast = run_decode(s, in, c),
                without = run_definition(s, in, make_cache(s, in, full(s), false));
  const size_t rows = s.heads * s.q_length, part = s.batch * rows;
  for (size_t n = 0; n < part; ++n) {
    EXPECT_EQ(fast.stats[2 * part + n], definition.stats[2 * part + n]);
    EXPECT_NEAR(fast.stats[part + n], definition.stats[part + n], 40 * unit_roundoff(DType::f32));
    if (n < rows) {
      EXPECT_EQ(definition.stats[part + n], without.stats[part + n]);
    }  // visible_counts is 40 here, the number of keys in the cache, so it changes nothing
    if (n >= 2 * rows) {
      EXPECT_LT(definition.stats[part + n], without.stats[part + n]);
    }  // the offset tau / 5000 is smaller than tau / 40, so 1 - (sum of weights) is smaller too
  }
}

// The case has more query rows than a kernel processes in one tile.
TEST(Decode, ManyQueriesAndHeads_MatchReference) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Shape s = long_shape();
    s.dtype = dtype;
    s.k_length = 900;
    s.q_length = 7;
    s.heads = 12;
    s.kv_heads = 2;
    s.window = 300;
    TwoReferences comparison;
    for (uint64_t seed : {21, 22}) {
      const Inputs in = make_inputs(s, seed);
      comparison.add(s, in, run_decode(s, in, make_cache(s, in, full(s), seed == 21)));
      s.head_dim = s.value_dim = 200;
    }
    comparison.check();
  }
}

Shape many_keys(int64_t batch, int64_t keys, int64_t heads, int64_t kv_heads, int64_t dim) {
  Shape s;
  s.dtype = DType::bf16;
  s.normalizer = Normalizer::elastic;
  s.batch = batch;
  s.k_length = keys;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = s.value_dim = dim;
  return s;
}

// The case has so many keys that each warp on a GPU processes a few hundred of them. The warp then reuses the stages of
// its ring buffers.
TEST(Decode, ManyKeysPerWarp_MatchReference) {
  if (!on_cuda()) GTEST_SKIP() << "this test checks how the GPU kernel divides the work";
  const Shape s = many_keys(8, 4096, 64, 16, 8);
  TwoReferences comparison;
  const Inputs in = make_inputs(s, 31);
  comparison.add(s, in, run_decode(s, in, make_cache(s, in, full(s), true)));
  comparison.check();
}

// The case has so many short sequences that one GPU block processes all keys of a tile of query rows (by_tile in
// decode.cu). If statistics are requested, the kernel does not use by_tile; the results must be equal.
TEST(Decode, ManyShortSequences_MatchReference) {
  if (!on_cuda()) GTEST_SKIP() << "this test checks how the GPU kernel divides the work";
  TwoReferences comparison;
  for (const auto& [paged, heads, softcap] : {std::tuple{false, 12, 0.0}, {true, 12, 0.0}, {true, 4, 5.0}}) {
    Shape s = many_keys(64, 300, heads, 4, 64);
    s.softcap = softcap;
    const Inputs in = make_inputs(s, 41 + paged);
    const Cache c = make_cache(s, in, full(s), paged);
    const Results with = run_decode(s, in, c), without = run_decode(s, in, c, 0, CudaKernel::automatic, false);
    comparison.add(s, in, with);
    EXPECT_EQ(without.out.data, with.out.data);
    EXPECT_EQ(without.lse, with.lse);
  }
  comparison.check();
}

// A GPU kernel cannot report invalid lengths or pages without synchronization. Instead, it returns NaN and does not
// read outside of the cache.
TEST(Decode, OutOfRangeLengthsAndPages_GiveNanOnTheGpu) {
  if (!on_cuda()) GTEST_SKIP() << "on the CPU, the operator checks these arguments";
  for (DType dtype : {DType::f32, DType::bf16}) {
    Shape s = long_shape();
    s.dtype = dtype;
    const Inputs in = make_inputs(s, 14);
    const auto nan_rows = [&](const Cache& c) {
      const Results r = run_decode(s, in, c);
      std::vector<bool> nan;
      for (int64_t b = 0; b < s.batch; ++b) {
        nan.push_back(std::isnan(r.out.row(b, 1, 3)[63]) && std::isnan(r.lse[(b * s.heads + 3) * s.q_length + 1]));
      }
      return nan;
    };
    for (int64_t wrong : {int64_t{-1}, int64_t{1} << 40, s.k_length + 6}) {
      Cache c = make_cache(s, in, full(s), false);
      c.lengths[1] = wrong;
      EXPECT_EQ(nan_rows(c), (std::vector<bool>{false, true, false})) << wrong;
    }
    Cache c = make_cache(s, in, full(s), false);
    c.counts = {3000, 1, 2};
    EXPECT_EQ(nan_rows(c), (std::vector<bool>{false, true, false}));
    for (int64_t wrong : {int64_t{-1}, int64_t{1} << 40, s.batch * c.width}) {
      c = make_cache(s, in, full(s), true);
      c.table[2 * c.width + 100] = wrong;
      EXPECT_EQ(nan_rows(c), (std::vector<bool>{false, false, true})) << wrong;
    }
  }
}

TEST(Decode, NanKey_ReachesTheOutput) {
  for (Normalizer normalizer : kAllNormalizers) {
    Shape s = long_shape();
    s.k_length = 700;
    s.normalizer = normalizer;
    Inputs in = make_inputs(s, 12);
    in.k.row(1, 33, 1)[5] = std::numeric_limits<double>::quiet_NaN();
    Results r = run_decode(s, in, make_cache(s, in, full(s), false));
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h)
        EXPECT_EQ(std::isnan(r.out.row(b, 0, h)[0]), b == 1 && h >= 2) << name(normalizer);
    }
  }
}

}  // namespace

}  // namespace lazy::kernels::test
