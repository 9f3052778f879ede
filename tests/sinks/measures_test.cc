#include "sinks/measures.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "full_matrices.h"
#include "model/forward_options.h"
#include "sinks/attention_maps.h"

namespace lazy::sinks {

at::Tensor some_ids(int64_t length, int64_t seed) {
  return at::remainder(at::arange(length, at::kLong) * (37 + 2 * seed) + seed, 300);
}

struct Case {
  const char* normalizer;
  double tau;
  int64_t window, kv_heads;
};

class MeasuresOf : public testing::TestWithParam<Case> {};

// Every measure is computed from the row statistics of the attention kernel. It must equal the same measure computed
// from full matrices.
TEST_P(MeasuresOf, Match_FullMatrices) {
  const Case c = GetParam();
  LanguageModel model = small_model(c.normalizer, c.tau, c.window, c.kv_heads);
  const at::NoGradGuard no_grad;
  const int64_t length = 40, samples = 3;
  ForwardOptions options;
  options.return_stats = true;
  MeasureSum sums;
  SinkRate rate(0.3);
  const size_t layers = 3, heads = 4;
  HeadMatrix sink(layers, std::vector<double>(heads)), released = sink, alive = sink, density = sink, over = sink;
  double pairs = 0;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const at::Tensor ids = some_ids(length, sample);
    const auto stats = model.forward(ids.reshape({1, -1}), options).stats;
    sums.add(stats, std::vector<int64_t>(layers, c.window));
    rate.add(stats);
    const auto weights = full_weights(model, ids);
    for (int64_t i = 0; i < length; ++i) pairs += double(c.window > 0 ? std::min(c.window, i + 1) : i + 1);
    for (size_t l = 0; l < layers; ++l) {
      for (size_t h = 0; h < heads; ++h) {
        const at::Tensor& w = weights[l][h];
        sink[l][h] += w.select(1, 0).sum().item<double>() / double(length * samples);
        density[l][h] += w.slice(1, 1).sum().item<double>() / double(length * samples);
        released[l][h] += (1 - w.sum(1)).sum().item<double>() / double(length * samples);
        alive[l][h] += w.gt(0).sum().item<double>();
        over[l][h] += (w.select(1, 0).mean().item<double>() > 0.3) / double(samples);
      }
    }
  }
  const Measures m = sums.result();
  const HeadMatrix rates = rate.result();
  ASSERT_EQ(m.sink_ratio.size(), layers);
  for (size_t l = 0; l < layers; ++l) {
    ASSERT_EQ(m.sink_ratio[l].size(), heads);
    for (size_t h = 0; h < heads; ++h) {
      // The fp32 rows have up to 40 terms. The bound covers their rounding errors compared with float64.
      const double bound = 40 * 6e-8 * 4;
      EXPECT_NEAR(m.sink_ratio[l][h], sink[l][h], bound);
      EXPECT_NEAR(m.density[l][h], density[l][h], 2 * bound);
      EXPECT_NEAR(m.released_mass[l][h], released[l][h], bound);
      // A weight that is zero up to rounding may count as zero in only one of the two results. The bound allows for one
      // such weight.
      EXPECT_NEAR(m.alive_fraction[l][h], alive[l][h] / pairs, 1.5 / pairs);
      EXPECT_DOUBLE_EQ(rates[l][h], over[l][h]);
      EXPECT_NEAR(m.sink_ratio[l][h] + m.density[l][h] + m.released_mass[l][h], 1, 1e-12);
    }
  }
  EXPECT_EQ(rate.samples(), samples);
}

INSTANTIATE_TEST_SUITE_P(Models, MeasuresOf,
                         testing::Values(Case{"softmax", 0, -1, 4}, Case{"elastic", -1, -1, 4},
                                         Case{"elastic", -2.5, -1, 2}, Case{"elastic", 0.5, -1, 4},
                                         Case{"elastic", -1, 7, 4}, Case{"softmax", 0, 7, 1}),
                         [](const auto& info) {
                           return std::string(info.param.normalizer) + std::to_string(info.index);
                         });

TEST(Measures, Measures_MatchHandComputedValues) {
  // The statistics of one layer, one sample, two heads and three queries. They are, in this order: the weight on the
  // first key, 1 - (sum of the weights), and the number of nonzero weights.
  const at::Tensor stats =
      at::tensor({1.0f, 0.5f, 0.3f, /**/ 0.0f, 0.2f, 0.1f, /**/ 0.0f, 0.0f, 0.0f, /**/ 1.0f, 0.5f, 0.6f,
                  /**/ 1.0f, 2.0f, 3.0f, /**/ 0.0f, 1.0f, 1.0f})
          .reshape({3, 1, 2, 3});
  MeasureSum sums;
  sums.add({stats}, {-1});
  const Measures m = sums.result();
  EXPECT_NEAR(m.sink_ratio[0][0], 0.6, 1e-7);
  EXPECT_NEAR(m.density[0][0], 0.4, 1e-7);
  EXPECT_NEAR(m.released_mass[0][1], 0.7, 1e-7);
  EXPECT_NEAR(m.density[0][1], 0.2, 1e-7);
  EXPECT_DOUBLE_EQ(m.alive_fraction[0][0], 1);
  EXPECT_DOUBLE_EQ(m.alive_fraction[0][1], 2.0 / 6);
  SinkRate rate(0.3);
  rate.add({stats});
  EXPECT_EQ(rate.result(), (HeadMatrix{{1, 0}}));
  EXPECT_DOUBLE_EQ(mean({{1, 2}, {3, 6}}), 3);
  EXPECT_DOUBLE_EQ(visible_pairs(4, -1), 10);
  EXPECT_DOUBLE_EQ(visible_pairs(4, 2), 1 + 2 + 2 + 2);
  EXPECT_DOUBLE_EQ(visible_pairs(4, 9), 10);
  EXPECT_THROW(MeasureSum().result(), Error);
  EXPECT_THROW(SinkRate().result(), Error);
}

TEST(AttentionWeights, AttentionWeights_MatchFullMatrices) {
  for (const Case& c : {Case{"softmax", 0, -1, 4}, Case{"elastic", -1, -1, 2}, Case{"elastic", -1, 9, 4}}) {
    LanguageModel model = small_model(c.normalizer, c.tau, c.window, c.kv_heads);
    const at::Tensor ids = some_ids(30, 1);
    const auto full = full_weights(model, ids);
    const auto rows = attention_weights(model, ids, {{0, 0}, {2, 3}, {1, 2}});
    ASSERT_EQ(rows.size(), 3u);
    const std::pair<size_t, size_t> heads[] = {{0, 0}, {2, 3}, {1, 2}};
    for (size_t n = 0; n < 3; ++n) {
      ASSERT_EQ(rows[n].size(), 30u);
      for (size_t i = 0; i < 30; ++i) {
        ASSERT_EQ(rows[n][i].size(), i + 1);
        for (size_t j = 0; j <= i; ++j) {
          EXPECT_NEAR(
              rows[n][i][j],
              full[heads[n].first][heads[n].second][static_cast<int64_t>(i)][static_cast<int64_t>(j)].item<double>(),
              1e-12);
        }
      }
    }
  }
  LanguageModel model = small_model("softmax");
  EXPECT_THROW(attention_weights(model, some_ids(5, 0), {{3, 0}}), Error);
  EXPECT_THROW(attention_weights(model, some_ids(5, 0), {{0, 4}}), Error);
}

}  // namespace lazy::sinks
