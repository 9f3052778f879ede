// Tests of score_stats (largest score and entropy per row) for every kernel against the float64 reference.
// product_test.cc also requests score_stats; this file tests inputs that are difficult for an online computation of the
// maximum, the sum of exponentials and the weighted sum.
#include <gtest/gtest.h>

#include <limits>

#include "run_cuda.h"

namespace lazy::kernels::test {

namespace {

using Parameter = std::tuple<CudaKernel, DType, int>;

class CudaScores : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
    const std::string unmet = unmet_condition_cuda(make_problem(shape(Normalizer::softmax)), kernel());
    if (!unmet.empty()) GTEST_SKIP() << unmet;
    current_run() = {.kernel = kernel(), .backward = false};
  }
  void TearDown() override { current_run() = {}; }

  static CudaKernel kernel() { return std::get<0>(GetParam()); }
  static bool serves(const Shape& s) { return unmet_condition_cuda(make_problem(s), kernel()).empty(); }
  static Shape shape(Normalizer normalizer) {
    Shape s;
    s.dtype = std::get<1>(GetParam());
    s.head_dim = s.value_dim = std::get<2>(GetParam());
    s.normalizer = normalizer;
    s.q_length = s.k_length = 100;
    return s;
  }

  // change: function that modifies the random inputs before the kernel runs. Only score_stats are compared here; other
  // test files compare the outputs.
  template <typename Change>
  void add(const Shape& s, const Change& change) {
    if (!serves(s)) return;
    SCOPED_TRACE(s.text());
    Inputs in = make_inputs(s, ++seed_);
    change(in);
    Results found;
    found.score_stats = run_cuda(s, in).score_stats;
    comparison_.add(s, in, found);
  }
  void add(const Shape& s) {
    add(s, [](Inputs&) {});
  }

  TwoReferences comparison_;
  uint64_t seed_ = 0;
};

TEST_P(CudaScores, MaskedRows_MatchReference) {
  for (const Normalizer normalizer : kAllNormalizers) {
    Shape s = shape(normalizer);
    s.heads = 4;  // two query heads per kv head
    s.window = 50;
    s.bias_window = 16;
    add(s);
    s = shape(normalizer);
    s.cu_q = {0, 30, 30, 55, 100};
    s.cu_k = {0, 20, 45, 45, 100};  // the third document has no keys
    add(s);
    s = shape(normalizer);
    s.causal = false;
    s.k_length = 137;
    s.score_scale = 40;
    add(s);
    s = shape(normalizer);
    s.k_length = 30;  // 70 rows see no key, one row sees one key
    add(s);
    s.window = 1;
    add(s);
    if (HasFailure()) return;
  }
  comparison_.check();
}

// Scores that increase or decrease from key to key over many tiles of keys.
TEST_P(CudaScores, IncreasingScores_MatchReference) {
  for (const Normalizer normalizer :
       {Normalizer::softmax, Normalizer::softmax_sink, Normalizer::elastic, Normalizer::elastic_sink}) {
    for (const bool grows : {true, false}) {
      for (const int64_t length : {200, 400}) {
        Shape s = shape(normalizer);
        s.heads = s.kv_heads = 1;
        s.k_length = length;
        s.score_scale = 20;
        add(s, [&](Inputs& in) {
          for (int64_t row = 0; row < s.k_length; ++row) {
            const double by = static_cast<double>(grows ? row : s.k_length - row) / 40;
            double* k = in.k.row(0, row, 0);
            for (int64_t d = 0; d < s.head_dim; ++d) k[d] = round_to(s.dtype, by * k[d]);
          }
        });
        if (HasFailure()) return;
      }
    }
  }
  comparison_.check();
}

// A sink that is so large that the exponentials of the scores underflow relative to the maximum, or so small that its
// own exponential does.
TEST_P(CudaScores, SinksFarFromTheScores_MatchReference) {
  for (const Normalizer normalizer : {Normalizer::softmax_sink, Normalizer::elastic_sink}) {
    for (const int64_t length : {200, 300}) {
      Shape s = shape(normalizer);
      s.k_length = length;
      add(s, [](Inputs& in) { in.sink = {200, -200}; });
    }
  }
  comparison_.check();
}

// Visible keys with a score of -inf do not contribute to the entropy.
TEST_P(CudaScores, MinusInfinityScores_MatchReference) {
  for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::softmax_sink, Normalizer::elastic_sink}) {
    Shape s = shape(normalizer);
    s.bias_window = 90;
    add(s, [](Inputs& in) {
      const size_t heads = 2, distances = in.distance_bias.size() / heads;
      for (size_t n = 0; n < heads * distances; ++n) {
        if (n % distances % 3 != 0) in.distance_bias[n] = -std::numeric_limits<double>::infinity();
      }
    });
  }
  comparison_.check();
}

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  const auto& [kernel, dtype, head_dim] = info.param;
  return std::string(name(kernel)) + "_" + name(dtype) + "_" + std::to_string(head_dim);
}

INSTANTIATE_TEST_SUITE_P(Plain, CudaScores,
                         testing::Combine(testing::Values(CudaKernel::plain), testing::Values(DType::f32, DType::bf16),
                                          testing::Values(64)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(TensorCores, CudaScores,
                         testing::Combine(testing::Values(CudaKernel::portable, CudaKernel::hopper),
                                          testing::Values(DType::bf16, DType::f16), testing::Values(64, 96, 128)),
                         test_name);

}  // namespace

}  // namespace lazy::kernels::test
