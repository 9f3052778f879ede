// Compares measures that are computed in parts, as the text is read, with direct computations from full matrices and
// whole tensors in float64.
#include "sinks/analysis.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "full_matrices.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "sinks/probe_measures.h"
#include "support/error_of.h"
#include "support/small_models.h"

namespace lazy::sinks {
namespace {

at::Tensor sample_ids(int64_t length, int64_t seed) {
  return at::remainder(at::arange(length, at::kLong) * (31 + 2 * seed) + 5 * seed, 300);
}

// Runs one forward pass per sample, with the given hooks.
void pass(LanguageModel& model, const ActivationHooks& probes, int64_t length, int64_t samples) {
  const at::NoGradGuard no_grad;
  ForwardOptions options;
  options.activation_hooks = &probes;
  for (int64_t seed = 0; seed < samples; ++seed) model.forward(sample_ids(length, seed).unsqueeze(0), options);
}

// Returns the tensors at the hook points that match `glob` in one pass, as float64.
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

TEST_P(WeightMeasuresOf, Match_FullMatrices) {
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
          double sum = 0;  // the sum of the definition, computed separately for each key
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

TEST(WeightMeasures, ReplacedWeights_AreMeasured) {
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

TEST(VectorStatistics, Statistics_MatchDefinitions) {
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
  EXPECT_THAT(error_of([] { VectorStatistics("attention.nothing").result(); }), Names({"attention.nothing"}));
}

TEST(MassiveActivations, Result_FindsInsertedActivations) {
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
  for (size_t place : {1u, 2u, 3u}) {  // the residual stream carries the inserted values to later layers
    EXPECT_EQ(places[place].count, 2) << place;
    EXPECT_EQ(places[place].position, 0);
    EXPECT_EQ(places[place].dimension, 7);
    EXPECT_EQ(places[place].by_position, (std::map<int64_t, int64_t>{{0, 3}, {4, 3}}));
    EXPECT_EQ(places[place].by_dimension, (std::map<int64_t, int64_t>{{7, 3}, {9, 3}}));
    EXPECT_EQ(places[place].samples, 3);
  }
  EXPECT_EQ(places[1].largest, 9e6);
  MassiveActivations strict(3, 8.5e6, 10);  // an activation counts only if it exceeds both bounds
  ActivationHooks again = probes;
  strict.attach(again);
  pass(model, again, 20, 1);
  EXPECT_EQ(strict.result()[1].count, 1);
  EXPECT_THROW(MassiveActivations(3).result(), Error);
}

TEST(MassiveActivations, Median_BelongsToLayer) {
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

TEST(Collapse, CosineAndRank_MatchPairwiseComputation) {
  LanguageModel model = small_model("softmax");
  Collapse collapse(3);
  ActivationHooks probes;
  collapse.attach(probes);
  std::map<std::string, at::Tensor> seen;  // tensors at all hook points in the last pass
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
    // Compute the singular values in another way: their squares are the eigenvalues of the Gram matrix.
    const at::Tensor values = at::linalg_eigvalsh(at::mm(tensor, tensor.t())).clamp_min(0).sqrt(),
                     p = values / values.sum();
    EXPECT_NEAR(samples[1].cosine, cosine, 1e-10) << name;
    EXPECT_NEAR(samples[1].effective_rank, std::exp(-at::xlogy(p, p).sum().item<double>()), 1e-4) << name;
  }
  EXPECT_NEAR(hidden_similarity(at::eye(6)).effective_rank, 6, 1e-9);
  EXPECT_NEAR(hidden_similarity(at::ones({5, 3})).cosine, 1, 1e-12);
  EXPECT_NEAR(hidden_similarity(at::ones({5, 3})).effective_rank, 1, 1e-6);
}

// Compares all numbers of the outlier report with loops over whole tensors in float64, for models in the layouts of
// GPT-2 and Llama.
TEST(Outliers, Outliers_MatchWholeTensors) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    LanguageModel model(small_family(family), 5);
    {
      // one channel with large values in the stream, and one token with even larger values
      const at::NoGradGuard guard;
      const at::Tensor embedding = model.parameters().front().second;
      embedding.select(1, 7).add_(20);
      embedding.select(0, 11).mul_(50);
    }
    const int64_t length = 21, samples = 3;
    const auto ids = [&](int64_t seed) { return at::remainder(sample_ids(length, seed), 61); };
    Outliers outliers(model.config().num_layers);
    ActivationHooks probes;
    outliers.attach(probes);
    {
      const at::NoGradGuard guard;
      ForwardOptions options;
      options.activation_hooks = &probes;
      for (int64_t seed = 0; seed < samples; ++seed) model.forward(ids(seed).unsqueeze(0), options);
    }
    std::vector<std::map<std::string, at::Tensor>> all;
    for (int64_t seed = 0; seed < samples; ++seed) all.push_back(tensors_at(model, "*", ids(seed)));
    size_t places = 0;
    double spikes = 0;
    for (const auto& [place, layers] : outliers.result()) {
      ++places;
      for (size_t l = 0; l < layers.size(); ++l) {
        const std::string name = place == "final.hidden" ? place
                                 : l == 3                ? "final.residual"
                                                         : "layers." + std::to_string(l) + "." + place;
        SCOPED_TRACE(name);
        double kurtosis = 0, first = 0, largest = 0, median = 0, ratio = 0, beyond = 0;
        std::map<int64_t, int64_t> winners;
        std::vector<double> squares;
        for (const auto& sample : all) {
          const at::Tensor x = sample.at(name).flatten(1).contiguous();
          const int64_t channels = x.size(1);
          squares.resize(static_cast<size_t>(channels));
          const double* entry = x.const_data_ptr<double>();
          std::vector<double> sizes;
          for (int64_t i = 0; i < x.numel(); ++i) sizes.push_back(std::abs(entry[i]));
          std::vector<double> sorted = sizes;
          std::sort(sorted.begin(), sorted.end());
          const double middle = sorted[(sorted.size() - 1) / 2];
          largest = std::max(largest, sorted.back());
          median += middle / samples;
          ratio += sorted.back() / middle / samples;
          for (int64_t t = 0; t < length; ++t) {
            const double* row = entry + t * channels;
            double mean = 0, second = 0, fourth = 0;
            int64_t winner = 0;
            for (int64_t c = 0; c < channels; ++c) {
              mean += row[c] / static_cast<double>(channels);
              squares[static_cast<size_t>(c)] += row[c] * row[c];
              if (std::abs(row[c]) > std::abs(row[winner])) winner = c;
            }
            for (int64_t c = 0; c < channels; ++c) {
              second += std::pow(row[c] - mean, 2) / static_cast<double>(channels);
              fourth += std::pow(row[c] - mean, 4) / static_cast<double>(channels);
            }
            (t == 0 ? first : kurtosis) += fourth / (second * second) / (t == 0 ? samples : samples * (length - 1));
            if (t > 0) ++winners[winner];
            beyond += (std::abs(row[winner]) > kSpike * middle) / double(samples);
          }
        }
        const Outliers::Layer& ours = layers[l];
        EXPECT_NEAR(ours.kurtosis, kurtosis, 1e-4 * kurtosis);
        EXPECT_NEAR(ours.kurtosis_first, first, 1e-4 * first);
        EXPECT_NEAR(ours.largest, largest, 1e-5 * largest);
        EXPECT_NEAR(ours.median, median, 1e-4 * median);
        EXPECT_NEAR(ours.ratio, ratio, 1e-4 * ratio);
        EXPECT_NEAR(ours.spikes, beyond, 1e-9);
        EXPECT_NEAR(ours.dimension_share * samples * (length - 1), double(winners[ours.dimension]), 1e-6);
        for (const auto& [channel, count] : winners) EXPECT_LE(count, winners[ours.dimension]);
        std::vector<double> sorted = squares;
        std::sort(sorted.begin(), sorted.end());
        const double middle = std::sqrt(sorted[(sorted.size() - 1) / 2]);
        ASSERT_EQ(ours.channels.size(), 4);
        for (size_t n = 0; n < 4; ++n) {
          const auto& [channel, times] = ours.channels[n];
          EXPECT_NEAR(times, std::sqrt(sorted[sorted.size() - 1 - n]) / middle, 1e-4 * times);
          EXPECT_NEAR(times, std::sqrt(squares[static_cast<size_t>(channel)]) / middle, 1e-4 * times);
        }
        if (place == "residual") {
          EXPECT_EQ(ours.dimension, 7);
          EXPECT_EQ(ours.channels.front().first, 7);
        }
        spikes += beyond;
      }
    }
    // six hook points: the residual stream, two products of attention, two products of the MLP, and the output head
    EXPECT_EQ(places, 6);
    EXPECT_GT(spikes, 0);
  }
}

// The report reads a long text in parts. The results must not change.
TEST(Outliers, LongText_IsReadInParts) {
  const at::Tensor x = at::randn({1, 3000, 257}, at::detail::createCPUGenerator(3), at::TensorOptions());
  Outliers outliers(0);
  ActivationHooks probes;
  outliers.attach(probes);
  probes.visit(-1, "final.residual", x);
  const Outliers::Layer ours = outliers.result().front().second.front();
  const at::Tensor centred = (x[0] - x[0].mean(1, true)).to(at::kDouble), square = centred.square();
  const at::Tensor kurtosis = square.square().mean(1) / square.mean(1).square();
  EXPECT_NEAR(ours.kurtosis, kurtosis.slice(0, 1).mean().item<double>(), 1e-4);
  EXPECT_NEAR(ours.largest, x.abs().max().item<double>(), 0);
  EXPECT_NEAR(ours.median, x.abs().median().item<double>(), 1e-3);
}

TEST(DecodeReads, Result_MatchesFullMatrices) {
  struct Case {
    const char* normalizer;
    int64_t window, kv_heads;
  };
  for (const Case& c :
       {Case{"softmax", -1, 2}, Case{"elastic", -1, 4}, Case{"elastic", -1, 2}, Case{"elastic", 9, 1}}) {
    SCOPED_TRACE(fmt::format("{}, window {}, {} key heads", c.normalizer, c.window, c.kv_heads));
    LanguageModel model = small_model(c.normalizer, -1.5, c.window, c.kv_heads);
    const int64_t length = 30, queries = 7, samples = 3, group = 4 / c.kv_heads;
    DecodeReads reads(model, queries);
    ActivationHooks probes;
    reads.attach(probes);
    pass(model, probes, length, samples);
    std::vector<double> pairs(3), alive(3), rows(3), in_group(3);
    for (int64_t seed = 0; seed < samples; ++seed) {
      const auto full = full_weights(model, sample_ids(length, seed));
      for (size_t layer = 0; layer < 3; ++layer) {
        for (int64_t query = length - queries; query < length; ++query) {
          const int64_t begin = c.window > 0 ? query + 1 - c.window : 0;
          for (int64_t key = begin; key <= query; ++key) {
            for (int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
              bool some = false;
              for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                const bool living = full[layer][static_cast<size_t>(head)][query][key].item<double>() > 0;
                ++pairs[layer], alive[layer] += living, some |= living;
              }
              ++rows[layer], in_group[layer] += some;
            }
          }
        }
      }
    }
    const DecodeReads::Result found = reads.result();
    EXPECT_EQ(found.length, length);
    EXPECT_EQ(found.queries, queries);
    const double row_bytes = 16 * 4, steps = samples * queries;  // a row is head_dim fp32 values
    double visible_bytes = 0, alive_bytes = 0;
    for (size_t layer = 0; layer < 3; ++layer) {
      // A weight that is zero up to rounding may be nonzero in only one of the two results.
      EXPECT_NEAR(found.alive[layer], alive[layer] / pairs[layer], 1 / pairs[layer]);
      EXPECT_NEAR(found.alive_in_group[layer], in_group[layer] / rows[layer], 1 / rows[layer]);
      if (std::string_view(c.normalizer) == "elastic") {
        EXPECT_LT(found.alive[layer], 1);
      }
      visible_bytes += 2 * rows[layer] / steps * row_bytes;
      alive_bytes += (rows[layer] + in_group[layer]) / steps * row_bytes;
    }
    EXPECT_NEAR(found.visible_bytes, visible_bytes, 1e-6);
    EXPECT_NEAR(found.alive_bytes, alive_bytes, 3 * row_bytes / steps);
  }
}

TEST(DecodeReads, SamplesOfDifferentLengths_AreRejected) {
  LanguageModel model = small_model("elastic");
  DecodeReads reads(model);
  EXPECT_TRUE(reads.empty());
  EXPECT_THROW(reads.result(), Error);
  ActivationHooks probes;
  reads.attach(probes);
  pass(model, probes, 20, 1);
  EXPECT_EQ(reads.result().queries, 20);
  EXPECT_THROW(pass(model, probes, 21, 1), Error);
}

TEST(FurtherMeasures, UnknownMeasure_IsRejected) {
  LanguageModel model = small_model("softmax");
  EXPECT_THAT(error_of([&] {
                FurtherMeasureCollector(model, {"weights", "colour"}, 0.3);
              }),
              Names({"--measures", "weights", "vectors", "massive", "collapse", "outliers", "decode", "colour"}));
}

}  // namespace
}  // namespace lazy::sinks
