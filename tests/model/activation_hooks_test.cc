// Tests of ActivationHooks: the names of the hook points and their order, hooks that only read (the results must not
// change) and hooks that replace an activation (only later activations may change).
#include "model/activation_hooks.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "ops/attention_weights.h"
#include "support/error_of.h"
#include "support/small_models.h"

namespace lazy {
namespace {

at::Tensor probed_ids(int64_t batch = 2, int64_t length = 13) {
  return at::remainder(at::arange(batch * length, at::kLong) * 17 + 3, 61).reshape({batch, length});
}

std::vector<std::pair<std::string, at::Tensor>> everything(LanguageModel& model, const at::Tensor& ids,
                                                           ActivationHooks probes = {}) {
  const at::NoGradGuard guard;
  std::vector<std::pair<std::string, at::Tensor>> seen;
  probes.read("*", [&](const std::string& name, const at::Tensor& t) { seen.emplace_back(name, t.clone()); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(ids, options);
  return seen;
}

std::vector<ModelConfig> probed_configs() {
  std::vector<ModelConfig> out;
  for (const char* normalizer : {"softmax", "elastic", "sigmoid", "softmax_sink", "sparsemax", "entmax15"})
    out.push_back(small_config(normalizer));
  out[0].family = ModelFamily::qwen3;
  out[0].attention.qk_norm = out[0].attention.qkv_bias = out[0].attention.output_bias = true;
  out[1].attention.window = 4;
  out[2].positions.kind = PositionKind::learned;
  out[3].positions.kind = PositionKind::alibi;
  out[4].attention.num_kv_heads = 4;
  out.push_back(small_config("softmax"));
  out.back().mixer.type = MixerType::delta_net;
  out.back().mixer.heads = 2;
  out.back().mixer.key_dim = out.back().mixer.value_dim = 8;
  out.back().mixer.attention_layers = {1};
  for (const int64_t segment : {0, 5}) {  // 0: the whole text is one segment; 5: segments with memory
    out.push_back(small_config(segment == 0 ? "elastic" : "softmax"));
    out.back().positions.kind = PositionKind::transformer_xl;
    out.back().positions.segment_length = segment;
    out.back().positions.memory_length = segment == 0 ? 0 : 3;
  }
  return out;
}

TEST(ActivationHooks, HookPointNames_AreInExecutionOrder) {
  for (const ModelConfig& config : probed_configs()) {
    LanguageModel model(config, 3);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : everything(model, probed_ids())) names.push_back(name);
    EXPECT_EQ(names, hook_point_names(config)) << name(config.attention.normalizer) << " " << name(config.mixer.type);
  }
}

TEST(ActivationHooks, ReadHooks_DoNotChangeResults) {
  const at::NoGradGuard guard;
  for (const ModelConfig& config : probed_configs()) {
    LanguageModel model(config, 3);
    const at::Tensor plain = model.forward(probed_ids()).hidden;
    ActivationHooks probes;
    int64_t reads = 0;
    for (const char* glob :
         {"embedding*", "*residual", "*middle", "*put", "*.[qkv]", "*projected", "*normed", "*heads", "final*"}) {
      probes.read(glob, [&](const std::string&, const at::Tensor&) { ++reads; });
    }
    ForwardOptions options;
    options.activation_hooks = &probes;
    EXPECT_TRUE(at::equal(model.forward(probed_ids(), options).hidden, plain)) << name(config.attention.normalizer);
    EXPECT_GT(reads, 20);
    // With hooks on scores and weights, the sums are computed in a different order than in the fused operator.
    probes.read("*", [](const std::string&, const at::Tensor&) {});
    EXPECT_TRUE(at::allclose(model.forward(probed_ids(), options).hidden, plain, 1e-4, 1e-5))
        << name(config.attention.normalizer);
  }
}

TEST(ActivationHooks, ResidualStream_IsSumOfBranchOutputs) {
  LanguageModel model(small_config("elastic"), 5);
  std::map<std::string, at::Tensor> at;
  for (auto& [name, tensor] : everything(model, probed_ids())) at[name] = tensor;
  const auto close = [](const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-5, 1e-5); };
  EXPECT_TRUE(at::equal(at["embedding"], at["layers.0.residual"]));
  EXPECT_TRUE(close(at["layers.1.middle"], at["layers.1.residual"] + at["layers.1.attention.output"]));
  EXPECT_TRUE(close(at["layers.2.residual"], at["layers.1.middle"] + at["layers.1.mlp.output"]));
  EXPECT_TRUE(close(at["final.residual"], at["layers.2.middle"] + at["layers.2.mlp.output"]));
  EXPECT_EQ(at["layers.1.attention.q"].sizes(), (std::vector<int64_t>{2, 13, 4, 6}));
  EXPECT_EQ(at["layers.1.attention.k"].sizes(), (std::vector<int64_t>{2, 13, 2, 6}));
  EXPECT_EQ(at["layers.1.attention.weights"].sizes(), (std::vector<int64_t>{2, 4, 13, 13}));
  EXPECT_FALSE(at::equal(at["layers.1.attention.q"], at["layers.1.attention.q.projected"]))
      << "q must be rotated by RoPE";
}

// If the values v are an identity matrix, the output of attention is equal to its weights. ops::normalized_weights must
// return the same weights as this output of the operator in float64.
TEST(ActivationHooks, Weights_MatchAttentionOperator) {
  const at::NoGradGuard guard;
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  const at::Generator generator = at::detail::createCPUGenerator(8);
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, generator, wide); };
  int64_t cases = 0;
  for (const char* normalizer :
       {"softmax", "elastic", "sigmoid", "softmax_sink", "sparsemax", "entmax15", "elastic_sink"}) {
    const ops::NormalizerTraits& traits = ops::traits(*ops::normalizer_from_name(normalizer));
    for (const int64_t window : {-1, 5}) {
      for (const bool biased : {false, true}) {
        const int64_t n = 17, heads = 4;
        const at::Tensor q = 2 * random({2, n, heads, 6}), k = 2 * random({2, n, 2, 6});
        ops::AttentionTerms terms;
        terms.options.normalizer = normalizer;
        terms.options.window = window;
        terms.options.return_stats = true;
        if (traits.takes_tau) terms.tau = -at::arange(1, heads + 1, wide) / 3;
        if (traits.takes_tau && biased) terms.options.offset = "constant", terms.tau = terms.tau / 10;
        if (traits.takes_sink) terms.options.sink = random({heads});
        if (biased) terms.distance_bias = random({heads, 3}), terms.options.alibi_slopes = random({heads}).abs();
        const at::Tensor identity = at::eye(n, wide).view({1, n, 1, n}).expand({2, n, 2, n}).contiguous();
        const auto [out, lse, stats] = ops::attention(q, k, identity, terms.distance_bias, terms.tau, terms.options);
        const at::Tensor weights = ops::normalized_weights(ops::attention_scores(q, k, terms), terms);
        EXPECT_TRUE(at::allclose(weights.transpose(1, 2), out, 1e-10, 1e-12))
            << normalizer << " " << window << " " << biased;
        EXPECT_TRUE(at::allclose(ops::weight_statistics(weights).slice(0, 0, 2), stats.slice(0, 0, 2).to(at::kFloat),
                                 1e-5, 1e-6))
            << normalizer;
        const at::Tensor later = ops::normalized_weights(ops::attention_scores(q.slice(1, 6), k, terms, 6), terms);
        EXPECT_TRUE(at::allclose(later, weights.slice(2, 6), 1e-12, 1e-14))
            << "weights of the queries from the seventh on";
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 28);
}

TEST(ActivationHooks, Replacement_ChangesOnlyLaterActivations) {
  for (const ModelConfig& config : probed_configs()) {
    LanguageModel model(config, 7);
    const auto before = everything(model, probed_ids());
    for (size_t n = 0; n < before.size(); ++n) {
      ActivationHooks probes;
      probes.replace(before[n].first, [](const std::string&, const at::Tensor& t) {
        return t.isneginf().any().item<bool>() ? t - 1 * at::arange(t.size(-1), t.options()) : 1.5 * t + 0.01;
      });
      const auto after = everything(model, probed_ids(), probes);
      ASSERT_EQ(after.size(), before.size());
      for (size_t m = 0; m < n; ++m)
        EXPECT_TRUE(at::equal(after[m].second, before[m].second)) << after[m].first << " before " << before[n].first;
      EXPECT_FALSE(at::equal(after[n].second, before[n].second)) << before[n].first;
      EXPECT_FALSE(at::equal(after.back().second, before.back().second)) << before[n].first;
    }
  }
}

TEST(ActivationHooks, CachedPasses_CallHooksWithSameValues) {
  const at::NoGradGuard guard;
  LanguageModel model(small_config("elastic"), 9);
  const at::Tensor ids = probed_ids(1, 12);
  std::map<std::string, at::Tensor> whole;
  for (auto& [name, tensor] : everything(model, ids)) whole[name] = tensor;
  KVCache cache;
  ForwardOptions options;
  options.cache = &cache;
  model.forward(ids.slice(1, 0, 11), options);
  int64_t compared = 0;
  ActivationHooks probes;
  probes.read("*", [&](const std::string& name, const at::Tensor& t) {
    const bool matrix = name.ends_with("scores") || name.ends_with("weights");
    EXPECT_TRUE(at::allclose(t, whole.at(name).slice(matrix ? 2 : 1, 11), 1e-4, 1e-5)) << name;
    ++compared;
  });
  options.activation_hooks = &probes;
  model.forward(ids.slice(1, 11), options);
  EXPECT_EQ(compared, static_cast<int64_t>(whole.size()));
  cache.streaming = StreamingCache{};
  EXPECT_THAT(error_of([&] { model.forward(ids, options); }), Names({"streaming", "probes"}));
}

// A hook replaces an activation x by scale * x. The derivative of the loss with respect to `scale`, computed by
// autograd, must match a difference quotient.
TEST(ActivationHooks, Gradients_FlowThroughReplacement) {
  LanguageModel model(small_config("softmax"), 4);
  for (const char* place : {"layers.1.residual", "layers.1.attention.k", "layers.1.attention.scores",
                            "layers.1.mlp.input", "final.hidden"}) {
    const auto value = [&](const at::Tensor& scale) {
      ActivationHooks probes;
      probes.replace(place, [&](const std::string&, const at::Tensor& t) {
        const at::Tensor hidden = t.isneginf();  // masked pairs of tokens keep the score -inf and have no gradient
        return at::where(hidden, t.detach(), t.masked_fill(hidden, 0) * scale);
      });
      ForwardOptions options;
      options.activation_hooks = &probes;
      return model.forward(probed_ids(), options).hidden.square().mean() +
             model.forward(probed_ids(), options).hidden.select(2, 0).mean();
    };
    const at::Tensor scale = at::ones({}, at::kFloat).requires_grad_(true);
    value(scale).backward();
    const at::NoGradGuard guard;
    const double step = 1e-2;
    const double quotient =
        (value(at::full({}, 1 + step)).item<double>() - value(at::full({}, 1 - step)).item<double>()) / (2 * step);
    EXPECT_NEAR(scale.grad().item<double>(), quotient, 2e-2 * std::max(0.05, std::abs(quotient))) << place;
  }
}

TEST(ActivationHooks, Replacement_OfWrongShapeIsRejected) {
  const at::NoGradGuard guard;
  LanguageModel model(small_config("softmax"), 4);
  ActivationHooks probes;
  probes.replace("layers.1.mlp.output", [](const std::string&, const at::Tensor& t) { return t.slice(1, 1); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  EXPECT_THAT(error_of([&] { model.forward(probed_ids(), options); }),
              IsMessage("probes: layers.1.mlp.output: the replacement must have shape [2, 13, 24], found [2, 12, 24]"));
}

TEST(ActivationHooks, GlobPatterns_Match) {
  EXPECT_TRUE(glob_matches("layers.*.attention.q", "layers.12.attention.q"));
  EXPECT_FALSE(glob_matches("layers.1.*", "layers.12.attention.q"));
  EXPECT_TRUE(glob_matches("layers.[2-5].*", "layers.3.mlp.output"));
}

}  // namespace
}  // namespace lazy
