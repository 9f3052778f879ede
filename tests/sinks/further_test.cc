// The streamed measures against direct computations from full matrices and whole tensors in float64.
#include "sinks/analysis.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/error.h"
#include "full_matrices.h"
#include "support/error_of.h"

namespace lazy::sinks {
namespace {
using testing::HasSubstr;

at::Tensor sample_ids(int64_t length, int64_t seed) {
  return at::remainder(at::arange(length, at::kLong) * (31 + 2 * seed) + 5 * seed, 300);
}

// One pass a sample.
void pass(LanguageModel& model, const ActivationHooks& probes, int64_t length, int64_t samples) {
  const at::NoGradGuard no_grad;
  ForwardOptions options;
  options.activation_hooks = &probes;
  for (int64_t seed = 0; seed < samples; ++seed) model.forward(sample_ids(length, seed).unsqueeze(0), options);
}

// Everything at some places of one pass, as float64.
std::map<std::string, at::Tensor> tensors_at(LanguageModel& model, const std::string& glob, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> out;
  ActivationHooks probes;
  probes.read(glob, [&](const std::string& name, const at::Tensor& t) { out[name] = t[0].to(at::kDouble); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(ids.unsqueeze(0), options);
  return out;
}

struct Kind {
  const char* normalizer;
  double tau;
  int64_t window, kv_heads, entries;
};

class WeightMeasuresOf : public testing::TestWithParam<Kind> {};

TEST_P(WeightMeasuresOf, FullMatrices) {
  const Kind kind = GetParam();
  LanguageModel model = small_model(kind.normalizer, kind.tau, kind.window, kind.kv_heads);
  const int64_t length = 29, samples = 4;
  const double threshold = 0.1;
  WeightMeasures measures(model, threshold, kind.entries);
  ActivationHooks probes;
  measures.attach(probes);
  pass(model, probes, length, samples);
  const auto result = measures.result();
  EXPECT_EQ(result.samples, samples);
  at::Tensor alpha = at::zeros({3, 4, length}, at::kDouble), sink = at::zeros_like(alpha),
             entropy = at::zeros({3, 4}, at::kDouble), queries = at::zeros_like(entropy);
  for (int64_t seed = 0; seed < samples; ++seed) {
    const auto weights = full_weights(model, sample_ids(length, seed));
    for (int64_t l = 0; l < 3; ++l) {
      for (int64_t h = 0; h < 4; ++h) {
        const at::Tensor& w = weights[static_cast<size_t>(l)][static_cast<size_t>(h)];
        for (int64_t k = 0; k < length; ++k) {
          double sum = 0;  // the definition, query by query
          for (int64_t i = k; i < length; ++i) sum += w[i][k].item<double>();
          alpha[l][h][k] += sum / double(length - k) / double(samples);
          sink[l][h][k] += (sum / double(length - k) > threshold) / double(samples);
        }
        for (int64_t i = 0; i < length; ++i) {
          const double total = w[i].sum().item<double>();
          if (total <= 0) continue;
          for (int64_t j = 0; j <= i; ++j) {
            const double p = w[i][j].item<double>() / total;
            if (p > 0) entropy[l][h] -= p * std::log(p);
          }
          queries[l][h] += 1;
        }
      }
    }
  }
  EXPECT_TRUE(at::allclose(result.alpha, alpha, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(result.sink, sink, 0, 1e-12));
  EXPECT_TRUE(at::allclose(result.entropy, entropy / queries, 1e-4, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Models, WeightMeasuresOf,
                         testing::Values(Kind{"softmax", 0, -1, 4, 1 << 24}, Kind{"softmax", 0, -1, 2, 4 * 29 * 3},
                                         Kind{"elastic", -1, -1, 4, 4 * 29 * 7}, Kind{"elastic", -2, 6, 2, 1}),
                         [](const auto& info) {
                           return std::string(info.param.normalizer) + std::to_string(info.index);
                         });

TEST(WeightMeasures, ReplacedWeightsAreMeasured) {
  LanguageModel model = small_model("softmax");
  ActivationHooks probes;
  probes.replace("layers.1.attention.weights",
                 [](const std::string&, const at::Tensor& w) { return at::eye(w.size(-1), w.options()).expand_as(w); });
  WeightMeasures measures(model, 0.3);
  measures.attach(probes, /*changed=*/true);
  pass(model, probes, 12, 2);
  const auto result = measures.result();
  for (int64_t k = 0; k < 12; ++k) EXPECT_NEAR(result.alpha[1][2][k].item<double>(), 1.0 / double(12 - k), 1e-6);
  EXPECT_EQ(result.entropy[1].abs().max().item<double>(), 0);
  EXPECT_GT(result.entropy[0].min().item<double>(), 0);
  EXPECT_THROW(WeightMeasures(model).result(), Error);
}

TEST(VectorStatistics, EqualTheDefinitions) {
  LanguageModel model = small_model("elastic", -1, -1, 2);
  const int64_t length = 21, samples = 3;
  for (const char* place :
       {"residual", "attention.input", "attention.q.projected", "attention.k", "attention.v", "mlp.output"}) {
    VectorStatistics statistics{place};
    ActivationHooks probes;
    statistics.attach(probes);
    pass(model, probes, length, samples);
    const auto result = statistics.result();
    at::Tensor norm = at::zeros_like(result.norm), variance = at::zeros_like(norm);
    for (int64_t seed = 0; seed < samples; ++seed) {
      for (const auto& [name, tensor] : tensors_at(model, std::string("layers.*.") + place, sample_ids(length, seed))) {
        const at::Tensor x = tensor.dim() == 2 ? tensor.unsqueeze(1) : tensor;  // (length, heads, dim)
        const at::Tensor mean = x.mean(-1, true);
        norm[layer_of(name)] += x.square().sum(-1).sqrt().t() / samples;
        variance[layer_of(name)] += ((x - mean).square().sum(-1) / double(x.size(2) - 1)).t() / samples;
      }
    }
    EXPECT_EQ(result.norm.size(0), 3);
    EXPECT_EQ(result.norm.size(1), std::string(place).find(".q") != std::string::npos ? 4
                                   : std::string(place).find("attention.i") == std::string::npos &&
                                           std::string(place).starts_with("attention")
                                       ? 2
                                       : 1)
        << place;
    EXPECT_TRUE(at::allclose(result.norm, norm, 1e-6, 1e-7)) << place;
    EXPECT_TRUE(at::allclose(result.variance, variance, 1e-5, 1e-7)) << place;
  }
  EXPECT_THAT(error_of([] { VectorStatistics("attention.nothing").result(); }), HasSubstr("attention.nothing"));
}

TEST(MassiveActivations, FoundWhereTheyWerePut) {
  LanguageModel model = small_model("softmax");
  ActivationHooks probes;
  probes.replace("layers.1.residual", [](const std::string&, const at::Tensor& t) {
    at::Tensor out = t.clone();
    out.select(1, 0).select(1, 7).fill_(-9e6);
    out.select(1, 4).select(1, 9).fill_(8e6);
    return out;
  });
  MassiveActivations massive(3);
  massive.attach(probes);
  pass(model, probes, 20, 3);
  const auto places = massive.result();
  ASSERT_EQ(places.size(), 4u);
  EXPECT_EQ(places[0].count, 0);
  for (size_t place : {1u, 2u, 3u}) {  // the residual stream carries them on
    EXPECT_EQ(places[place].count, 2) << place;
    EXPECT_EQ(places[place].position, 0);
    EXPECT_EQ(places[place].dimension, 7);
    EXPECT_EQ(places[place].by_position, (std::map<int64_t, int64_t>{{0, 3}, {4, 3}}));
    EXPECT_EQ(places[place].by_dimension, (std::map<int64_t, int64_t>{{7, 3}, {9, 3}}));
    EXPECT_EQ(places[place].samples, 3);
  }
  EXPECT_EQ(places[1].largest, 9e6);
  MassiveActivations strict(3, 8.5e6, 10);  // above both bounds or not at all
  ActivationHooks again = probes;
  strict.attach(again);
  pass(model, again, 20, 1);
  EXPECT_EQ(strict.result()[1].count, 1);
  EXPECT_THROW(MassiveActivations(3).result(), Error);
}

TEST(MassiveActivations, MedianIsThatOfTheLayer) {
  LanguageModel model = small_model("elastic");
  MassiveActivations massive(3);
  ActivationHooks probes;
  massive.attach(probes);
  pass(model, probes, 17, 1);
  for (const auto& [name, tensor] : tensors_at(model, "layers.*.residual", sample_ids(17, 0))) {
    const auto place = massive.result()[static_cast<size_t>(layer_of(name))];
    EXPECT_NEAR(place.median, tensor.abs().reshape({-1}).median().item<double>(), 1e-7);
    EXPECT_NEAR(place.largest, tensor.abs().max().item<double>(), 1e-6);
  }
}

TEST(Collapse, CosineAndRankPairByPair) {
  LanguageModel model = small_model("softmax");
  Collapse collapse(3);
  ActivationHooks probes;
  collapse.attach(probes);
  std::map<std::string, at::Tensor> seen;  // of the last pass
  probes.read("*", [&](const std::string& name, const at::Tensor& t) { seen[name] = t[0].to(at::kDouble); });
  pass(model, probes, 19, 2);
  ASSERT_EQ(collapse.result().size(), 5u);
  for (const auto& [name, tensor] : seen) {
    const bool last = name == "final.hidden", end = name == "final.residual";
    if (!last && !name.ends_with("residual")) continue;
    const auto& samples = collapse.result()[last ? 4u : end ? 3u : static_cast<size_t>(layer_of(name))];
    ASSERT_EQ(samples.size(), 2u);
    double cosine = 0;
    for (int64_t i = 0; i < 19; ++i) {
      for (int64_t j = 0; j < 19; ++j) {
        if (i != j)
          cosine += at::dot(tensor[i], tensor[j]).item<double>() /
                    (tensor[i].norm() * tensor[j].norm()).item<double>() / (19 * 18);
      }
    }
    // The spectrum by another way: eigenvalues of the Gram matrix are the squares.
    const at::Tensor values = at::linalg_eigvalsh(at::mm(tensor, tensor.t())).clamp_min(0).sqrt(),
                     p = values / values.sum();
    EXPECT_NEAR(samples[1].cosine, cosine, 1e-10) << name;
    EXPECT_NEAR(samples[1].effective_rank, std::exp(-at::xlogy(p, p).sum().item<double>()), 1e-4) << name;
  }
  EXPECT_NEAR(hidden_similarity(at::eye(6)).effective_rank, 6, 1e-9);
  EXPECT_NEAR(hidden_similarity(at::ones({5, 3})).cosine, 1, 1e-12);
  EXPECT_NEAR(hidden_similarity(at::ones({5, 3})).effective_rank, 1, 1e-6);
}

TEST(FurtherMeasures, RefusesAnUnknownOne) {
  LanguageModel model = small_model("softmax");
  EXPECT_THAT(error_of([&] {
                FurtherMeasureCollector(model, {"weights", "colour"}, 0.3);
              }),
              HasSubstr("expected all or some of weights, vectors, massive, collapse, found 'colour'"));
}

}  // namespace
}  // namespace lazy::sinks
