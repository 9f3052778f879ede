// Tests of the kernels against the reference for combinations of shapes and options. There is one test per type and
// normalizer.
#include <gtest/gtest.h>

#include <array>

#include "case.h"

namespace lazy::kernels::test {

namespace {

using Parameter = std::tuple<DType, Normalizer>;

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

// For short rows, all combinations are tested. For longer rows, every stride-th combination is tested. The stride has
// no common factor with the number of values of any option, so that all pairs of values of two options still occur.
std::vector<Shape> shapes(DType dtype, Normalizer normalizer, int64_t length) {
  std::vector<Shape> all;
  const bool elastic = traits(normalizer).takes_tau;
  // A positive number is the number of keys before the first query, a negative number the number of queries before the
  // first key.
  for (int64_t cached : {0, 37, -20}) {
    if (length + cached < 1) continue;
    for (auto [heads, kv_heads] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{3, 1}}) {
      for (int64_t window : {-1, 1, 50}) {
        for (int64_t bias_window : {0, 1, 16, 600}) {
          for (double tau : {-30.0, -1.0, 0.0, 0.5}) {
            if (!elastic && tau != -1.0) continue;
            for (bool causal : {true, false}) {
              for (auto [head_dim, value_dim] : {std::pair{64, 64}, std::pair{40, 24}, std::pair{128, 96}}) {
                Shape s;
                s.dtype = dtype;
                s.normalizer = normalizer;
                s.q_length = length;
                s.k_length = length + cached;
                s.heads = heads;
                s.kv_heads = kv_heads;
                s.window = window;
                s.bias_window = bias_window;
                s.tau = tau;
                s.causal = causal;
                s.head_dim = head_dim;
                s.value_dim = value_dim;
                s.batch = length > 111 ? 1 : 1 + all.size() % 2;
                s.alibi = all.size() % 5 == 0;
                s.layout = static_cast<Layout>(all.size() % 3);
                s.score_scale = all.size() % 7 == 3 ? 40 : 1;
                s.softcap = std::array{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 50}[all.size() % 13];
                s.offset = all.size() % 11 == 6 ? Offset::constant : Offset::per_visible;
                all.push_back(s);
              }
            }
          }
        }
      }
    }
  }
  const size_t stride = length <= 111   ? (elastic ? 97 : 29)
                        : length <= 513 ? (elastic ? 487 : 131)
                                        : (elastic ? 1151 : 311);
  // The tests of different types and normalizers start at different combinations, so that together they cover more of
  // them.
  const size_t first =
      static_cast<size_t>(length) + 7 * static_cast<size_t>(dtype) + 13 * static_cast<size_t>(normalizer);
  std::vector<Shape> chosen;
  for (size_t n = first % stride; n < all.size(); n += stride) chosen.push_back(all[n]);
  if (chosen.empty()) chosen.push_back(all[0]);
  return chosen;
}

class Fast : public testing::TestWithParam<Parameter> {};

TEST_P(Fast, MatchesReference) {
  const auto [dtype, normalizer] = GetParam();
  TwoReferences comparison;
  uint64_t seed = 1;
  for (int64_t length : {1, 2, 63, 111, 513, 1000}) {
    for (const Shape& shape : shapes(dtype, normalizer, length)) {
      ASSERT_EQ(unmet_condition(make_problem(shape)), "") << shape.text();
      comparison.add(shape, make_inputs(shape, seed++));
      if (HasFailure()) return;
    }
  }
  comparison.check();
}

INSTANTIATE_TEST_SUITE_P(Slow, Fast,
                         testing::Combine(testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::ValuesIn(kAllNormalizers)),
                         test_name);

}  // namespace

}  // namespace lazy::kernels::test
