// Tests of the portable forward kernel of sparsemax and entmax-1.5 (src/attention/cuda/portable_forward_threshold.cuh).
// For each row, the kernel first lists the keys that may have a nonzero weight. A list has a fixed capacity. The tests
// cover rows whose keys always fit in the list, rows whose list becomes full and is compacted, and rows with more keys
// than the list can hold, which a second kernel processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "run_cuda.h"

namespace lazy::kernels::test {

namespace {

using Parameter = std::tuple<DType, Normalizer, int>;

class CudaLists : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
    const std::string unmet = unmet_condition_cuda(make_problem(shape(80, 80)), CudaKernel::portable);
    if (!unmet.empty()) GTEST_SKIP() << unmet;
    current_run() = {.kernel = CudaKernel::portable};
  }
  void TearDown() override { current_run() = {}; }

  static Shape shape(int64_t q_length, int64_t k_length, double deviation = 1) {
    Shape s;
    std::tie(s.dtype, s.normalizer, s.head_dim) = GetParam();
    s.value_dim = s.head_dim;
    s.q_length = q_length;
    s.k_length = k_length;
    s.score_scale = deviation;
    return s;
  }
  static void expect_reference(const std::vector<Shape>& shapes) {
    TwoReferences comparison(true);
    uint64_t seed = 1;
    for (const Shape& s : shapes) {
      current_run().deterministic = seed % 2;
      const Inputs inputs = make_inputs(s, seed++);
      comparison.add(s, inputs, run_cuda(s, inputs));
      if (HasFailure()) return;
    }
    comparison.check();
  }
  // Compares the results of the forward pass with a tolerance for scores of size `size`.
  static void expect_forward(const Results& reference, const Results& found, double size) {
    const double rounding = 4 * unit_roundoff(std::get<0>(GetParam())) + 1e-6 * size;
    auto expect_close = [&](const char* what, const std::vector<double>& x, const std::vector<double>& y, double most) {
      for (size_t n = 0; n < x.size(); ++n) {
        if (x[n] == y[n]) continue;  // skips exact results, including equal infinities
        ASSERT_NEAR(x[n], y[n], most) << what << ' ' << n;
      }
    };
    double largest = 0;
    for (double x : reference.out.data) largest = std::max(largest, std::abs(x));
    expect_close("out", reference.out.data, found.out.data, rounding * largest);
    expect_close("lse", reference.lse, found.lse, 1e-6 * (1 + size));
    expect_close("stats", reference.stats, found.stats, 1e-5 + 1e-6 * size);
  }
};

// Tests rows in which only a few keys have nonzero weight, so that the list of keys stays short. The third argument of
// shape() is the approximate standard deviation of the scores.
TEST_P(CudaLists, ShortLists_MatchReference) {
  std::vector<Shape> all{shape(300, 300, 3), shape(257, 290, 40), shape(90, 400, 3), shape(200, 200, 3)};
  all[1].heads = 4;
  all[1].alibi = true;
  all[2].causal = false;
  all[2].kv_heads = 1;
  all[2].layout = Layout::heads_first;
  all[3].batch = 2;
  all[3].bias_window = 600;
  expect_reference(all);
}

// Tests rows whose list of keys becomes full and is compacted. With a score deviation of 0.35, rows have more keys with
// nonzero weight than a list can hold.
TEST_P(CudaLists, CompactedLists_MatchReference) {
  std::vector<Shape> all{shape(330, 330, 0.7), shape(40, 500, 0.35), shape(330, 350, 0.35)};
  all[0].bias_window = 16;
  all[1].causal = false;
  all[1].heads = 3;
  all[1].kv_heads = 1;
  all[2].alibi = true;
  expect_reference(all);
}

// Tests rows in which nearly all keys have nonzero weight. Rows of up to 60 keys fit in a list. Longer rows of the same
// warp do not fit; the kernel then sweeps over all keys of these rows instead of using a list.
TEST_P(CudaLists, OverflowedLists_MatchReference) {
  std::vector<Shape> all{shape(150, 150, 0.01), shape(150, 190, 0.01), shape(140, 190, 0.01), shape(190, 170, 0.01),
                         shape(100, 80, 0.01)};
  all[0].heads = 4;
  all[1].window = 50;  // with this window, rows have fewer keys than a list can hold
  all[2].window = 45;
  all[2].causal = false;  // each row now sees up to 90 keys
  all[2].layout = Layout::heads_first;
  all[3].cu_q = {0, 63, 63, 80, 190};
  all[3].cu_k = {0, 40, 60, 61, 170};
  all[4].bias_window = 300;  // all[4] has 100 queries and 80 keys, so its first 20 rows see no key.
  expect_reference(all);
}

// Tests rows whose scores are all equal, with fewer and with more keys than a list can hold.
TEST_P(CudaLists, Ties_MatchReference) {
  for (const double key : {0.0, 0.05, -20.0, 200.0}) {
    SCOPED_TRACE(key);
    const Shape s = shape(200, 200);
    Inputs in = make_inputs(s, 9);
    std::fill(in.q.data.begin(), in.q.data.end(), 1.0);
    std::fill(in.k.data.begin(), in.k.data.end(), round_to(s.dtype, key));
    const Results found = run_cuda(s, in);
    expect_forward(run_reference(s, in), found, std::sqrt(s.head_dim) * std::abs(key));
    for (int64_t row = 0; row < s.q_length; ++row) ASSERT_EQ(found.stats[4 * s.q_length + row], row + 1);
  }
}

// Tests scores that increase (or decrease) by 1 / steps from one key to the next. Every key is a candidate for the list
// when it is read, but at most `steps` keys have nonzero weight in the end.
TEST_P(CudaLists, Ramps_MatchReference) {
  for (const double steps : {2.0, 20.0, 50.0, 310.0}) {
    for (const double sign : {1.0, -1.0}) {
      SCOPED_TRACE(steps * sign);
      Shape s = shape(40, 330);
      s.causal = false;
      s.heads = s.kv_heads = 1;
      Inputs in = make_inputs(s, 11);
      std::fill(in.q.data.begin(), in.q.data.end(), 0.0);
      std::fill(in.k.data.begin(), in.k.data.end(), 0.0);
      for (int64_t row = 0; row < s.q_length; ++row) in.q.row(0, row, 0)[0] = 8;
      for (int64_t key = 0; key < s.k_length; ++key) {
        const double score = sign * static_cast<double>(key) / steps, high = std::floor(score);
        in.k.row(0, key, 0)[0] = round_to(s.dtype, (score - high) * std::sqrt(s.head_dim) / 8);
        in.k.row(0, key, 0)[1] = high;  // an integer, which the 16-bit type represents exactly
      }
      for (int64_t row = 0; row < s.q_length; ++row) in.q.row(0, row, 0)[1] = round_to(s.dtype, std::sqrt(s.head_dim));
      expect_forward(run_reference(s, in), run_cuda(s, in), 170);
    }
  }
}

// Tests inputs in which one key is NaN. Every row that sees this key must become NaN, and the results of the other rows
// in the warp must not change. The first deviation gives rows whose keys fit in lists; the second one gives rows whose
// keys do not fit.
TEST_P(CudaLists, NanKey_ReachesOnlyRowsThatSeeIt) {
  for (const double deviation : {3.0, 0.01}) {
    SCOPED_TRACE(deviation);
    const Shape s = shape(140, 140, deviation);
    Inputs in = make_inputs(s, 12);
    const Results before = run_cuda(s, in);
    in.k.row(0, 105, 1)[3] = NAN;
    const Results after = run_cuda(s, in);
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t row = 0; row < s.q_length; ++row) {
        const bool sees = h == 1 && row >= 105;
        for (int64_t d = 0; d < s.value_dim; ++d) {
          const double x = after.out.row(0, row, h)[d], y = before.out.row(0, row, h)[d];
          ASSERT_EQ(std::isnan(x), sees) << "row " << row << " head " << h;
          if (sees) continue;
          ASSERT_NEAR(x, y, 4 * unit_roundoff(s.dtype) * (1 + std::abs(y))) << "row " << row;
        }
      }
    }
  }
}

std::vector<int> head_sizes() {
  std::vector<int> sizes;
  for (const KernelEntry& e : kTensorCoreKernels) {
    if (e.kernel == CudaKernel::portable && e.family == NormalizerFamily::threshold) sizes.push_back(e.head_size);
  }
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(Portable, CudaLists,
                         testing::Combine(testing::Values(DType::bf16, DType::f16),
                                          testing::Values(Normalizer::sparsemax, Normalizer::entmax15),
                                          testing::ValuesIn(head_sizes())),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param)) +
                                  "_" + std::to_string(std::get<2>(info.param));
                         });

}  // namespace

}  // namespace lazy::kernels::test
