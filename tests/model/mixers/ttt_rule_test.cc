// Tests of TTT's recurrence: the chunkwise parallel form against the token-by-token recurrence.
#include "model/mixers/ttt_rule.h"

#include "model/mixers/recurrence_checks.h"
#include "model/mixers/reference_rules.h"
#include "ops/device.h"

namespace lazy {
namespace {

using testing::expect_close;
using testing::expect_gradients;
using testing::gradients_of;
using testing::Tensors;

struct Case {
  TttInputs in;
  TttWeights weights;
};

Case random_case(bool mlp, int64_t batch, int64_t length, int64_t heads, int64_t dim, int64_t mini_batch = 16) {
  at::manual_seed(length * 7 + dim);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const auto normal = [&](at::IntArrayRef shape, double std = 1) { return at::randn(shape, options) * std; };
  const int64_t inner = mlp ? 4 * dim : dim;
  Case c;
  c.in = {.q = normal({batch, length, heads, dim}),
          .k = normal({batch, length, heads, dim}),
          .v = normal({batch, length, heads, dim}),
          .rate = at::rand({batch, length, heads}, options) / dim,
          .position_scale = at::rand({mini_batch}, options) + 0.1,
          .norm_weight = 1 + normal({heads, dim}, 0.2),
          .norm_bias = normal({heads, dim}, 0.2)};
  c.weights.W = {normal({heads, dim, inner}, 0.3)}, c.weights.b = {normal({heads, 1, inner}, 0.3)};
  if (mlp) c.weights.W.push_back(normal({heads, inner, dim}, 0.3)), c.weights.b.push_back(normal({heads, 1, dim}, 0.3));
  return c;
}

Tensors flat(const Case& c) {
  Tensors out = {c.in.q, c.in.k, c.in.v, c.in.rate, c.in.position_scale, c.in.norm_weight, c.in.norm_bias};
  out.insert(out.end(), c.weights.W.begin(), c.weights.W.end());
  out.insert(out.end(), c.weights.b.begin(), c.weights.b.end());
  return out;
}

Case unflat(const Tensors& t) {
  Case c{.in = {t[0], t[1], t[2], t[3], t[4], t[5], t[6]}};
  const size_t layers = (t.size() - 7) / 2;
  c.weights.W.assign(t.begin() + 7, t.begin() + 7 + static_cast<std::ptrdiff_t>(layers));
  c.weights.b.assign(t.begin() + 7 + static_cast<std::ptrdiff_t>(layers), t.end());
  return c;
}

Tensors tensors_of(const at::Tensor& out, const TttState& s) {
  Tensors all = {out};
  for (const auto* list : {&s.start.W, &s.start.b, &s.sums.W, &s.sums.b})
    all.insert(all.end(), list->begin(), list->end());
  return all;
}

template <typename Form>
Tensors run(const Form& form, const Case& c, const at::Tensor& cu_seqlens = {}) {
  const auto [out, state] = form(c.in, initial_ttt_state(c.weights, c.in.q.size(0)), cu_seqlens);
  return tensors_of(out, state);
}

Case tokens(const Case& c, int64_t begin, int64_t length) {
  Case part = c;
  for (at::Tensor* x : {&part.in.q, &part.in.k, &part.in.v, &part.in.rate}) *x = x->narrow(1, begin, length);
  return part;
}

class TttRule : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, TttRule, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "mlp" : "linear"; });

TEST_P(TttRule, ChunkwiseForm_MatchesReference) {
  for (const int64_t length : {1, 5, 16, 17, 55}) {
    for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{1, 6}, {3, 4}}) {
      const Case c = random_case(GetParam(), 2, length, heads, dim);
      expect_close(run(ttt_chunks, c), run(reference_ttt, c), 1e-10, ("length " + std::to_string(length)).c_str());
    }
  }
}

// Computes the update of TTT's inner model with explicit sums and without autograd, for one linear head of dimension 2.
TEST(TttRuleByHand, TwoDimensionalHead_MatchesHandComputation) {
  const Case c = random_case(false, 1, 3, 1, 2, 2);
  const auto number = [](const at::Tensor& x, std::initializer_list<int64_t> at) {
    at::Tensor y = x;
    for (const int64_t i : at) y = y[i];
    return y.item<double>();
  };
  double W[2][2], b[2], sum_W[2][2] = {}, sum_b[2] = {};
  for (int i = 0; i < 2; ++i) {
    b[i] = number(c.weights.b[0], {0, 0, i});
    for (int j = 0; j < 2; ++j) W[i][j] = number(c.weights.W[0], {0, i, j});
  }
  const auto [out, state] = ttt_chunks(c.in, initial_ttt_state(c.weights, 1));
  for (int t = 0; t < 3; ++t) {
    const auto at = [&](const at::Tensor& x, int i) { return number(x, {0, t, 0, i}); };
    const double gamma[2] = {number(c.in.norm_weight, {0, 0}), number(c.in.norm_weight, {0, 1})};
    const double beta[2] = {number(c.in.norm_bias, {0, 0}), number(c.in.norm_bias, {0, 1})};
    // Computes the normalized output for the input x under the given weights. With two dimensions, LayerNorm gives h /
    // sqrt(h^2 + eps) and its negative, where h is half of the difference of the two outputs.
    const auto normalize = [&](const at::Tensor& x, double w[2][2], double bias[2], double* hat, double* root) {
      double z[2];
      for (int j = 0; j < 2; ++j) z[j] = at(x, 0) * w[0][j] + at(x, 1) * w[1][j] + bias[j];
      const double half = (z[0] - z[1]) / 2;
      *root = std::sqrt(half * half + kTttNormEps);
      hat[0] = half / *root, hat[1] = -hat[0];
    };
    double hat[2], root;
    normalize(c.in.k, W, b, hat, &root);
    double e[2];
    for (int j = 0; j < 2; ++j) e[j] = gamma[j] * (gamma[j] * hat[j] + beta[j] - (at(c.in.v, j) - at(c.in.k, j)));
    // Derivative of the normalized output: d hat_0 / d half = eps / root^3. `half` is (z_0 - z_1) / 2, so its
    // derivatives with respect to z_0 and z_1 are 1/2 and -1/2.
    const double g0 = (e[0] - e[1]) * kTttNormEps / (root * root * root) / 2, g[2] = {g0, -g0};
    const double rate = number(c.in.rate, {0, t, 0}), scale = number(c.in.position_scale, {t % 2});
    double now_W[2][2], now_b[2];
    for (int j = 0; j < 2; ++j) {
      sum_b[j] += rate * g[j];
      now_b[j] = b[j] - scale * sum_b[j];
      for (int i = 0; i < 2; ++i) {
        sum_W[i][j] += rate * at(c.in.k, i) * g[j];
        now_W[i][j] = W[i][j] - scale * sum_W[i][j];
      }
    }
    normalize(c.in.q, now_W, now_b, hat, &root);
    for (int j = 0; j < 2; ++j) {
      EXPECT_NEAR(number(out, {0, t, 0, j}), at(c.in.q, j) + gamma[j] * hat[j] + beta[j], 1e-9) << "token " << t;
    }
    if (t % 2 == 0) continue;
    for (int j = 0; j < 2; ++j) {
      b[j] = now_b[j], sum_b[j] = 0;
      for (int i = 0; i < 2; ++i) W[i][j] = now_W[i][j], sum_W[i][j] = 0;
    }
  }
}

TEST_P(TttRule, GradientsThroughInnerSteps_MatchReference) {
  const Case c = random_case(GetParam(), 2, 11, 2, 3, 4);
  const auto chunks = [](const Tensors& t) { return run(ttt_chunks, unflat(t)); };
  const auto loop = [](const Tensors& t) { return run(reference_ttt, unflat(t)); };
  expect_gradients(chunks, flat(c));
  expect_close(gradients_of(chunks, flat(c)), gradients_of(loop, flat(c)), 1e-9, "gradient");
}

// The sequence is longer than the number of tokens between two saved states, and it consists of packed documents.
TEST_P(TttRule, GradientsAcrossCheckpoints_MatchReference) {
  const Case c = random_case(GetParam(), 1, 275, 1, 6);
  const at::Tensor cu_seqlens = at::tensor({0, 7, 275}, at::kInt);
  const auto chunks = [&](const Tensors& t) { return run(ttt_chunks, unflat(t), cu_seqlens); };
  const auto loop = [&](const Tensors& t) { return run(reference_ttt, unflat(t), cu_seqlens); };
  expect_close(chunks(flat(c)), loop(flat(c)), 1e-9, "result");
  expect_close(gradients_of(chunks, flat(c)), gradients_of(loop, flat(c)), 1e-8, "gradient");
}

// Outputs and gradients must not depend on whether the last state is computed.
TEST_P(TttRule, LastState_IsOptional) {
  for (const int64_t length : {3, 16, 21, 32, 275}) {
    const Case c = random_case(GetParam(), 1, length, 2, 6);
    const auto answers = [&](bool last_state) {
      return [last_state](const Tensors& t) {
        Case given = unflat(t);
        given.in.last_state = last_state;
        return Tensors{run(ttt_chunks, given)[0]};
      };
    };
    const std::string what = "length " + std::to_string(length);
    expect_close(answers(false)(flat(c)), answers(true)(flat(c)), 1e-14, what.c_str());
    expect_close(gradients_of(answers(false), flat(c)), gradients_of(answers(true), flat(c)), 1e-12, what.c_str());
  }
}

TEST_P(TttRule, State_Continues) {
  const Case c = random_case(GetParam(), 2, 45, 2, 4);
  const Tensors whole = run(ttt_chunks, c);
  for (const int64_t prefill : {0, 3, 16, 33}) {
    TttState state = initial_ttt_state(c.weights, 2);
    std::vector<at::Tensor> out;
    if (prefill > 0) {
      auto [first, next] = ttt_chunks(tokens(c, 0, prefill).in, state);
      out.push_back(first), state = next;
    }
    for (int64_t t = prefill; t < 45; ++t) {
      const TttState before = state;
      auto [y, next] = ttt_chunks(tokens(c, t, 1).in, state);
      EXPECT_TRUE(at::equal(before.start.W[0], state.start.W[0]));
      out.push_back(y), state = next;
    }
    expect_close(tensors_of(at::cat(out, 1), state), whole, 1e-11, "prefill and steps");
    EXPECT_EQ(state.chunk_position, 45 % 16);
  }
  auto [first, state] = reference_ttt(tokens(c, 0, 21).in, initial_ttt_state(c.weights, 2));
  auto [second, last] = reference_ttt(tokens(c, 21, 24).in, state);
  expect_close(tensors_of(at::cat({first, second}, 1), last), whole, 1e-11, "the reference, computed in two parts");
}

TEST_P(TttRule, PackedDocuments_AreIndependent) {
  const Case c = random_case(GetParam(), 1, 60, 2, 4);
  const at::Tensor cu_seqlens = at::tensor({0, 21, 21, 60}, at::kInt);
  for (const auto& form : {ttt_chunks, reference_ttt}) {
    const at::Tensor together = run(form, c, cu_seqlens)[0];
    expect_close({together}, {at::cat({run(form, tokens(c, 0, 21))[0], run(form, tokens(c, 21, 39))[0]}, 1)}, 1e-12,
                 "packed");
  }
}

TEST_P(TttRule, SinglePrecision_IsCloseToDouble) {
  const Case c = random_case(GetParam(), 2, 55, 2, 16);
  Tensors single;
  for (const at::Tensor& x : flat(c)) single.push_back(x.to(at::kFloat));
  const at::Tensor exact = run(ttt_chunks, c)[0];
  const auto error = [&](const Tensors& t) { return testing::largest_difference(t[0].to(at::kDouble), exact); };
  const double chunks = error(run(ttt_chunks, unflat(single))), loop = error(run(reference_ttt, unflat(single)));
  EXPECT_LE(chunks, 3 * loop + 1e-6) << "the error of the reference in fp32 is " << loop;
  EXPECT_LT(chunks, 1e-2);
}

TEST_P(TttRule, Precision_IsBoundedOnTestDevice) {
  const Case c = random_case(GetParam(), 2, 64, 2, 16);
  const auto chunks = [](const Tensors& t, bool rounded) {
    Case given = unflat(t);
    given.in.rounded = rounded;
    return Tensors{run(ttt_chunks, given)[0]};
  };
  const auto loop = [](const Tensors& t) { return Tensors{run(reference_ttt, unflat(t))[0]}; };
  testing::expect_precision(chunks, loop, flat(c), ops::test::test_device());
}

}  // namespace
}  // namespace lazy
