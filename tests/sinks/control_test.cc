// Tests the controls of the sink measures, which are values to compare the measures with. Sink ratios of rows with
// equal scores, and models with a post-hoc offset, are compared with explicit weights. Outliers of the residual stream
// are compared with plain loops.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/statistics.h"
#include "full_matrices.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/mixers/mixer.h"
#include "ops/attention_weights.h"
#include "sinks/measures.h"
#include "sinks/post_hoc.h"
#include "sinks/residual_statistics.h"
#include "sinks/uniform.h"
#include "support/error_of.h"

namespace lazy::sinks {
namespace {

at::Tensor token_ids(int64_t length, int64_t seed) {
  return at::remainder(at::arange(length, at::kLong) * (29 + 2 * seed) + 3 * seed, 300);
}

// Computes the attention weights of rows whose scores are all equal. Returns the mean weight on the first key.
double by_force(const char* normalizer, const char* offset, double tau, int64_t length, double score) {
  ops::AttentionTerms terms;
  terms.options.normalizer = normalizer;
  terms.options.offset = offset;
  terms.tau = at::full({1}, tau, at::kDouble);
  at::Tensor scores = at::full({1, 1, length, length}, score, at::kDouble);
  scores = scores.masked_fill(at::ones({length, length}, at::kBool).triu(1), -INFINITY);
  return ops::normalized_weights(scores, terms)[0][0].select(1, 0).mean().item<double>();
}

TEST(UniformRows, UniformSinkRatio_MatchesEqualScores) {
  for (const int64_t length : {1, 2, 7, 64}) {
    for (const double score : {0.0, -3.0, 2.5}) {
      for (const char* normalizer : {"softmax", "sparsemax", "entmax15"}) {
        EXPECT_NEAR(uniform_sink_ratio(*kNormalizerNames.find(normalizer), OffsetKind::per_visible, -1, length),
                    by_force(normalizer, "per_visible", 0, length, score), 1e-9)
            << normalizer << " " << length;
      }
      for (const double tau : {-2.0, -1.0, -0.3, -0.02, 0.0, 0.1}) {
        EXPECT_NEAR(uniform_sink_ratio(Normalizer::elastic, OffsetKind::per_visible, tau, length),
                    by_force("elastic", "per_visible", tau, length, score), 1e-9);
        EXPECT_NEAR(uniform_sink_ratio(Normalizer::elastic, OffsetKind::constant, tau, length),
                    by_force("elastic", "constant", tau, length, score), 1e-9);
      }
    }
  }
  EXPECT_NEAR(uniform_sink_ratio(Normalizer::softmax, OffsetKind::per_visible, 0, 64), 4.743890904 / 64, 1e-9);
  EXPECT_EQ(uniform_sink_ratio(Normalizer::elastic, OffsetKind::per_visible, -1, 512), 0);
  EXPECT_THAT(error_of([] { uniform_sink_ratio(Normalizer::sigmoid, OffsetKind::per_visible, 0, 8); }),
              Names({"softmax", "elastic", "sparsemax", "entmax15", "sigmoid"}));
  EXPECT_THAT(error_of([] { uniform_sink_ratio(Normalizer::softmax, OffsetKind::per_visible, 0, 0); }), Names({1, 0}));
}

// If all scores of a row are equal, the row has no excess sink (sink ratio minus its value for equal scores). This must
// be true for every value of the scores, also for normalizers whose weights depend on this value.
TEST(UniformRows, UniformRows_UseLevelOfMeasuredRows) {
  const at::NoGradGuard no_grad;
  for (const char* normalizer : {"softmax", "softmax_sink", "sigmoid", "softpick"}) {
    const LanguageModel model = small_model(normalizer, 0);
    for (const double level : {-1.5, 0.0, 2.0}) {
      ops::AttentionTerms terms;
      terms.options.normalizer = normalizer;
      if (normalizer == std::string("softmax_sink")) terms.options.sink = at::full({4}, 0.5, at::kDouble);
      const at::Tensor hidden = at::ones({6, 6}, at::kBool).triu(1);
      const at::Tensor scores = at::full({2, 4, 6, 6}, level, at::kDouble).masked_fill(hidden, -INFINITY);
      const at::Tensor stats = ops::weight_statistics(ops::normalized_weights(scores, terms));
      UniformRows uniform(model);
      uniform.add({stats, stats, stats});
      const double ratio = stats.select(0, 0).mean().item<double>();
      EXPECT_NEAR(uniform.stated(), ratio, 1e-7) << normalizer << " at " << level;
      if (normalizer == std::string("softmax_sink")) {
        EXPECT_LT(ratio, 0.9 * harmonic_number(6) / 6);
      }
    }
  }
  const LanguageModel elastic = small_model("elastic", -0.5);
  UniformRows uniform(elastic);
  EXPECT_THAT(error_of([&] { uniform.result(); }), Names({"sinks"}));
  uniform.add(std::vector<at::Tensor>(3, at::zeros({3, 1, 4, 6})));
  EXPECT_NEAR(mean(uniform.result()), 0.5 * harmonic_number(6) / 6, 1e-7);
  EXPECT_EQ(uniform.stated(), 0);
  EXPECT_FALSE(UniformRows::serves(small_model("softmax", 0, 7).config()));
}

TEST(UniformRows, UniformRows_UseOffsetOfEachHead) {
  LanguageModel model = small_model("elastic", -0.5);
  const at::NoGradGuard no_grad;
  model.tau(1)[2].fill_(0.25);
  const HeadMatrix uniform = uniform_sink_ratios(model, 5);
  const double even = (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0 + 1 / 5.0) / 5;
  ASSERT_EQ(uniform.size(), 3u);
  ASSERT_EQ(uniform[1].size(), 4u);
  EXPECT_NEAR(uniform[0][0], 0.5 * even, 1e-7);
  EXPECT_NEAR(uniform[1][2], 1.25 * even, 1e-7);
  EXPECT_THAT(error_of([] { uniform_sink_ratios(small_model("softmax", 0, 7), 5); }), Names({7}));
}

// A model with a post-hoc offset must give the same statistics and outputs as the softmax model whose weights p are
// replaced by max(p + tau / i, 0) in every layer, where i is the number of visible keys.
TEST(PostHoc, PostHoc_MatchesModelWithReducedWeights) {
  for (const double tau : {-1.0, -0.4}) {
    LanguageModel model = small_model("softmax");
    LanguageModel control = with_post_hoc_offset(model, tau);
    const at::NoGradGuard no_grad;
    const at::Tensor ids = token_ids(31, 2);
    // Compute the expected result: the weights of every layer of the softmax model are replaced by a hook.
    ActivationHooks hooks;
    std::map<std::string, at::Tensor> replaced;
    hooks.replace("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& p) {
      const at::Tensor visible = at::arange(1, p.size(2) + 1, p.options()).view({-1, 1});
      const at::Tensor lowered = at::relu(p + tau / visible) * at::ones({p.size(2), p.size(3)}, p.options()).tril();
      replaced[name] = lowered;
      return lowered;
    });
    ForwardOptions by_hand, with_stats;
    by_hand.activation_hooks = &hooks;
    with_stats.return_stats = true;
    const at::Tensor expected = model.forward(ids.unsqueeze(0), by_hand).hidden;
    const ForwardResult found = control.forward(ids.unsqueeze(0), with_stats);
    EXPECT_LT((found.hidden - expected).abs().max().item<double>(), 2e-4 * expected.abs().max().item<double>());
    ASSERT_EQ(replaced.size(), 3u);
    for (int64_t layer = 0; layer < 3; ++layer) {
      const at::Tensor& w = replaced.at("layers." + std::to_string(layer) + ".attention.weights");
      const at::Tensor stats = ops::weight_statistics(w), ours = found.stats[static_cast<size_t>(layer)];
      EXPECT_LT((ours[0] - stats[0]).abs().max().item<double>(), 1e-4);
      EXPECT_LT((ours[1] - stats[1]).abs().max().item<double>(), 1e-4);
    }
    EXPECT_EQ(model.config().attention.normalizer, Normalizer::softmax) << "the model itself is unchanged";
    EXPECT_FALSE(model.tau(0).defined());
  }
  EXPECT_THAT(error_of([] { with_post_hoc_offset(small_model("elastic")); }), Names({"softmax", "elastic"}));
}

TEST(PostHoc, PostHoc_KeepsDistanceBiases) {
  ModelConfig config = small_model("softmax").config();
  config.attention.distance_bias_window = 12;
  config.attention.distance_bias_init_std = 1;
  const LanguageModel model(config, 5);
  const LanguageModel control = with_post_hoc_offset(model);
  EXPECT_TRUE(at::equal(model.distance_bias(2), control.distance_bias(2)));
  EXPECT_TRUE(at::equal(model.projections(2).v, control.projections(2).v));
}

TEST(Residual, Outliers_MatchPlainLoops) {
  LanguageModel model = small_model("softmax");
  const at::NoGradGuard no_grad;
  const int64_t length = 9, samples = 3;
  ResidualStatistics statistics(3);
  ActivationHooks hooks;
  statistics.attach(hooks);
  std::map<std::string, std::vector<at::Tensor>> seen;
  hooks.read("*residual",
             [&](const std::string& name, const at::Tensor& t) { seen[name].push_back(t.to(at::kDouble)); });
  ForwardOptions options;
  options.activation_hooks = &hooks;
  for (int64_t seed = 0; seed < samples; ++seed) model.forward(token_ids(length, seed).unsqueeze(0), options);
  const auto places = statistics.result();
  ASSERT_EQ(places.size(), 4u);
  for (int64_t place = 0; place < 4; ++place) {
    const auto& tensors = seen.at(place == 3 ? "final.residual" : "layers." + std::to_string(place) + ".residual");
    double kurtosis[2] = {}, rms[2] = {}, largest[2] = {}, count[2] = {};
    for (const at::Tensor& t : tensors) {
      for (int64_t i = 0; i < length; ++i) {
        const int part = i == 0 ? 0 : 1;
        const int64_t width = t.size(2);
        double mean = 0, second = 0, fourth = 0, square = 0;
        for (int64_t d = 0; d < width; ++d) mean += t[0][i][d].item<double>() / double(width);
        for (int64_t d = 0; d < width; ++d) {
          const double x = t[0][i][d].item<double>(), c = x - mean;
          second += c * c / double(width);
          fourth += c * c * c * c / double(width);
          square += x * x / double(width);
          largest[part] = std::max(largest[part], std::abs(x));
        }
        kurtosis[part] += fourth / (second * second);
        rms[part] += std::sqrt(square);
        ++count[part];
      }
    }
    const auto check = [&](const ResidualStatistics::ResidualMoments& p, int part) {
      EXPECT_NEAR(p.kurtosis, kurtosis[part] / count[part], 1e-4);
      EXPECT_NEAR(p.rms, rms[part] / count[part], 1e-5);
      EXPECT_NEAR(p.largest, largest[part], 1e-6);
      EXPECT_EQ(p.positions, count[part]);
    };
    check(places[static_cast<size_t>(place)].first, 0);
    check(places[static_cast<size_t>(place)].others, 1);
  }
  EXPECT_THAT(error_of([] { ResidualStatistics(2).result(); }), Names({"sinks"}));
}

}  // namespace
}  // namespace lazy::sinks
