// Tests of the decoder against its definition: logits, loss, all gradients, KV cache, precision and hooks.
#include "model/language_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <regex>

#include "core/error.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/reference_decoder.h"

namespace lazy {
namespace {

using testing::copy_weights;
using testing::ReferenceDecoder;

constexpr int64_t kIgnoredLabel = -100;

struct Shape {
  const char* name;
  ModelConfig config;
};

ModelConfig small(const char* kind) {
  ModelConfig c{.vocab_size = 97,
                .hidden_size = 48,
                .num_layers = 2,
                .max_length = 64,
                .attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 16},
                .mlp = {.intermediate_size = 80}};
  c.init_std = 0.15;  // large enough that attention and the offset's threshold affect the results
  if (std::string(kind) == "lazy") {
    c.attention.normalizer = Normalizer::elastic;
    c.attention.distance_bias_window = 12;
    c.attention.distance_bias_init_std = 0.5;
    c.positions.rope_base = 1.5e5;
  }
  return c;
}

std::vector<Shape> shapes() {
  std::vector<Shape> out = {{"softmax", small("transformer")}, {"lazy", small("lazy")}};
  out.push_back({"softmax_grouped_tied", small("transformer")});
  out.back().config.attention.num_kv_heads = 2;
  out.back().config.tie_embeddings = true;
  out.push_back({"lazy_grouped_tied", small("lazy")});
  out.back().config.attention.num_kv_heads = 1;
  out.back().config.tie_embeddings = true;
  out.push_back({"lazy_window", small("lazy")});
  out.back().config.attention.window = 9;
  out.push_back({"lazy_fixed_constant_offset", small("lazy")});
  out.back().config.attention.offset = OffsetKind::constant;
  out.back().config.attention.offset_trainable = false;
  out.back().config.attention.offset_init = -0.05;
  out.push_back({"lazy_positive_offset", small("lazy")});
  out.back().config.attention.offset_init = 0.5;
  for (const char* normalizer : {"sigmoid", "sparsemax", "entmax15", "softmax_sink", "softpick", "elastic_sink"}) {
    out.push_back({normalizer, small("transformer")});
    out.back().config.attention.normalizer = *kNormalizerNames.find(normalizer);
  }
  out.push_back({"off_by_one", small("transformer")});
  out.back().config.attention.normalizer = Normalizer::softmax_sink;
  out.back().config.attention.sink_trainable = false;
  out.push_back({"gated_by_head", small("transformer")});
  out.back().config.attention.gate = GateKind::head;
  out.push_back({"lazy_grouped_gated_by_element", small("lazy")});
  out.back().config.attention.gate = GateKind::element;
  out.back().config.attention.num_kv_heads = 2;
  for (const char* positions : {"learned", "sinusoidal", "alibi", "none"}) {
    out.push_back({positions, small("transformer")});
    out.back().config.positions.kind = *kPositionKinds.find(positions);
    out.back().config.positions.alibi_trainable = true;
  }
  out.push_back({"lazy_alibi", small("lazy")});
  out.back().config.positions.kind = PositionKind::alibi;
  out.back().config.positions.alibi_trainable = true;
  out.push_back({"transformer_xl", small("transformer")});
  out.back().config.positions.kind = PositionKind::transformer_xl;
  out.push_back({"lazy_transformer_xl_segments", small("lazy")});
  out.back().config.positions.kind = PositionKind::transformer_xl;
  out.back().config.attention.num_kv_heads = 2;
  out.back().config.positions.segment_length = 8;
  out.back().config.positions.memory_length = 11;
  out.back().config.positions.clamp_length = 15;
  out.push_back({"rope_of_half_the_head", small("transformer")});
  out.back().config.positions.partial_rotary_factor = 0.5;
  out.push_back({"rope_of_neighbours", small("lazy")});
  out.back().config.positions.rope_interleaved = true;
  return out;
}

at::Tensor random_ids(at::IntArrayRef shape, int64_t vocabulary, uint64_t seed) {
  return at::randint(0, vocabulary, shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kLong));
}

// Compares two implementations. The distance of our results from float64 must be at most twice the distance of a plain
// computation in the same precision, plus one rounding. The distance is the root mean square over all values that are
// added under one name. For few values (such as the offsets of four heads), it would depend too much on chance.
// Therefore tests add the values of several seeds, and of all layers, under the same name. A single wrong element still
// dominates the distance.
class Distances {
 public:
  explicit Distances(double epsilon) : epsilon_(epsilon) {}
  void add(const std::string& name, const at::Tensor& ours, const at::Tensor& plain, const at::Tensor& exact) {
    const auto square = [](const at::Tensor& x) { return x.detach().to(at::kDouble).square().sum().item<double>(); };
    const at::Tensor truth = exact.detach().to(at::kDouble);
    Sums& sums = sums_[name];
    sums.ours += square(ours.detach().to(at::kDouble) - truth);
    sums.plain += square(plain.detach().to(at::kDouble) - truth);
    sums.exact += square(truth);
  }
  void expect_close() const {
    for (const auto& [name, sums] : sums_) {
      EXPECT_LE(std::sqrt(sums.ours), 2 * std::sqrt(sums.plain) + epsilon_ / 2 * std::sqrt(sums.exact)) << name;
      EXPECT_GT(sums.exact, 0) << name;
    }
  }

 private:
  struct Sums {
    double ours = 0, plain = 0, exact = 0;
  };
  double epsilon_;
  std::map<std::string, Sums> sums_;
};

std::string without_layer(const std::string& name) {
  return std::regex_replace(name, std::regex("layers\\.[0-9]+"), "layers.*");
}

constexpr double kFloatEpsilon = 1.2e-7, kBFloat16Epsilon = 7.8e-3;

class Decoder : public ::testing::TestWithParam<Shape> {};

// Compares the logits, the terms of the loss and every gradient in `dtype` with the definition.
void compare_with_definition(const ModelConfig& config, at::ScalarType dtype) {
  const bool bf16 = dtype == at::kBFloat16;
  Distances distances(bf16 ? kBFloat16Epsilon : kFloatEpsilon);
  for (const uint64_t seed : {1, 2, 3, 4}) {
    LanguageModel model(config, seed);
    model.set_compute_dtype(dtype);
    const at::Tensor ids = random_ids({2, 37}, config.vocab_size, seed + 10);
    at::Tensor labels = random_ids({2, 37}, config.vocab_size, seed + 20);
    labels[0].narrow(0, 30, 7).fill_(kIgnoredLabel);
    const ReferenceDecoder exact(config, copy_weights(model, at::kDouble)),
        plain(config, copy_weights(model, at::kFloat), bf16);
    const at::Tensor hidden = model.forward(ids).hidden;
    EXPECT_EQ(hidden.scalar_type(), dtype);
    distances.add("logits", model.logits(hidden), plain.logits(ids), exact.logits(ids));
    const at::Tensor tokens = model.log_likelihood(ids, labels).first;
    distances.add("log-likelihood", tokens, plain.log_likelihood(ids, labels), exact.log_likelihood(ids, labels));
    const at::Tensor loss = model.loss(ids, labels);
    const auto counted = static_cast<double>(labels.ne(kIgnoredLabel).sum().item<int64_t>());
    EXPECT_NEAR(loss.item<double>(), -tokens.sum(at::kDouble).item<double>() / counted,
                kFloatEpsilon * loss.item<double>());
    loss.backward();
    exact.loss(ids, labels).backward();
    plain.loss(ids, labels).backward();
    for (const auto& [name, tensor] : model.parameters()) {
      ASSERT_TRUE(tensor.grad().defined()) << name;
      EXPECT_EQ(tensor.grad().scalar_type(), at::kFloat) << name;
      distances.add(without_layer(name), tensor.grad(), plain.weights().at(name).grad(),
                    exact.weights().at(name).grad());
    }
  }
  distances.expect_close();
}

TEST_P(Decoder, LogitsLossAndGradients_MatchDefinition) { compare_with_definition(GetParam().config, at::kFloat); }

TEST_P(Decoder, BFloat16_IsWithinTwiceReferenceError) { compare_with_definition(GetParam().config, at::kBFloat16); }

TEST_P(Decoder, CachedForward_MatchesFullForward) {
  const ModelConfig& config = GetParam().config;
  LanguageModel model(config, 4);
  const at::NoGradGuard guard;
  const at::Tensor ids = random_ids({2, 40}, config.vocab_size, 5);
  const at::Tensor full = model.logits(model.forward(ids).hidden);
  const at::Tensor exact = ReferenceDecoder(config, copy_weights(model, at::kDouble)).logits(ids);
  const at::Tensor plain = ReferenceDecoder(config, copy_weights(model, at::kFloat)).logits(ids);
  KVCache cache;
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (const int64_t n : {1, 16, 1, 1, 7, 14}) {  // a prompt in chunks, with single tokens between them
    parts.push_back(model.logits(model.forward(ids.narrow(1, start, n), {.cache = &cache}).hidden));
    start += n;
    EXPECT_EQ(cache.length, start);
  }
  ASSERT_EQ(start, ids.size(1));
  Distances distances(kFloatEpsilon);
  distances.add("cached", at::cat(parts, 1), plain, exact);
  distances.add("full", full, plain, exact);
  distances.expect_close();
}

INSTANTIATE_TEST_SUITE_P(Shapes, Decoder, ::testing::ValuesIn(shapes()),
                         [](const auto& info) { return info.param.name; });

TEST(LanguageModel, Gradients_AccumulateAndScaleWithLoss) {
  LanguageModel model(small("lazy"), 3);
  const at::Tensor ids = random_ids({2, 20}, 97, 1), labels = random_ids({2, 20}, 97, 2);
  model.loss(ids, labels).backward();
  std::vector<at::Tensor> once;
  for (const auto& [name, tensor] : model.parameters()) once.push_back(tensor.grad().clone());
  (model.loss(ids, labels) * 4).backward();  // scaling by a power of two causes no rounding
  for (size_t i = 0; i < once.size(); ++i) {
    const auto& [name, tensor] = model.parameters()[i];
    EXPECT_TRUE(at::allclose(tensor.grad(), once[i] * 5, 2e-7, 0)) << name;
  }
}

TEST(LanguageModel, Checkpointing_IsBitwiseEqual) {
  for (const Shape& shape : shapes()) {
    const at::Tensor ids = random_ids({2, 37}, shape.config.vocab_size, 1);
    const auto gradients = [&](Checkpointing checkpointing) {
      LanguageModel model(shape.config, 5);
      model.set_checkpointing(checkpointing);
      std::vector<at::Tensor> all;
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {  // gradients accumulate over two micro-batches
        const at::Tensor loss = model.loss(ids, ids);
        loss.backward();
        all.push_back(loss.detach());
      }
      for (const auto& [name, tensor] : model.parameters()) all.push_back(tensor.grad());
      return all;
    };
    const auto kept = gradients(Checkpointing::none);
    for (const char* name : {"mlp", "attention", "full"}) {
      const auto again = gradients(checkpointing_from(name));
      for (size_t n = 0; n < kept.size(); ++n) {
        ASSERT_TRUE(again[n].defined() && again[n].equal(kept[n])) << shape.name << " " << name << " " << n;
      }
    }
  }
  EXPECT_THROW(checkpointing_from("some"), Error);
}

TEST(LanguageModel, InPlaceParameterChanges_ReachProducts) {
  LanguageModel model(small("transformer"), 3);
  const at::NoGradGuard guard;
  const at::Tensor ids = random_ids({1, 8}, 97, 1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    model.set_compute_dtype(dtype);
    for (const auto& [name, tensor] : model.parameters()) {
      if (tensor.dim() != 2) continue;
      const at::Tensor before = model.logits(model.forward(ids).hidden);
      tensor.mul_(1.5);
      EXPECT_FALSE(at::equal(before, model.logits(model.forward(ids).hidden))) << name;
    }
  }
}

TEST(LanguageModel, LossWithoutLabels_IsNaN) {
  LanguageModel model(small("lazy"), 3);
  EXPECT_TRUE(
      std::isnan(model.loss(random_ids({1, 5}, 97, 1), at::full({1, 5}, kIgnoredLabel, at::kLong)).item<float>()));
}

TEST(LanguageModel, LogLikelihood_MatchesLogits) {
  LanguageModel model(small("lazy"), 6);
  const at::Tensor ids = random_ids({2, 11}, 97, 1), labels = random_ids({2, 11}, 97, 2);
  const auto [likelihood, best] = model.log_likelihood(ids, labels);
  const at::NoGradGuard guard;
  const at::Tensor logits = model.logits(model.forward(ids).hidden);
  const at::Tensor expected = at::log_softmax(logits, 2).gather(2, labels.unsqueeze(2)).squeeze(2);
  EXPECT_TRUE(at::allclose(likelihood, expected, 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(best, logits.argmax(2).eq(labels)));
}

TEST(LanguageModel, StatisticsAndAttentionInputs_AreReportedPerLayer) {
  LanguageModel model(small("lazy"), 7);
  const at::NoGradGuard guard;
  const at::Tensor ids = random_ids({2, 13}, 97, 1);
  std::vector<int64_t> layers;
  ForwardOptions options;
  options.return_stats = true;
  options.on_attention_input = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k) {
    layers.push_back(layer);
    EXPECT_EQ(q.sizes(), (std::vector<int64_t>{2, 13, 4, 16}));
    EXPECT_EQ(k.sizes(), q.sizes());
  };
  const ForwardResult result = model.forward(ids, options);
  EXPECT_EQ(layers, (std::vector<int64_t>{0, 1}));
  ASSERT_EQ(result.stats.size(), 2u);
  for (const at::Tensor& stats : result.stats) {
    EXPECT_EQ(stats.sizes(), (std::vector<int64_t>{3, 2, 4, 13}));
    EXPECT_TRUE(stats.select(0, 2).select(2, 0).eq(0).all().item<bool>())
        << "with one visible key (i = 1) and tau = -1, all weights are zero";
  }
}

TEST(LanguageModel, Seed_DeterminesWeights) {
  const LanguageModel a(small("lazy"), 9), b(small("lazy"), 9), c(small("lazy"), 10);
  double sum = 0, square = 0, n = 0;
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    const auto& [name, tensor] = a.parameters()[i];
    EXPECT_TRUE(at::equal(tensor, b.parameters()[i].second)) << name;
    if (tensor.dim() == 1) continue;
    EXPECT_FALSE(at::equal(tensor, c.parameters()[i].second)) << name;
    if (name.find("bias") != std::string::npos) continue;
    sum += tensor.sum(at::kDouble).item<double>();
    square += tensor.to(at::kDouble).square().sum().item<double>();
    n += static_cast<double>(tensor.numel());
  }
  EXPECT_NEAR(sum / n, 0, 5 * 0.15 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(square / n), 0.15, 5 * 0.15 / std::sqrt(2 * n));
}

TEST(LanguageModel, WeightDecay_ExcludesNormsBiasesAndOffsets) {
  const LanguageModel model(small("lazy"), 1);
  int64_t decayed = 0, others = 0;
  for (const auto& [name, tensor] : model.parameters()) {
    (model.decays(name) ? decayed : others) += tensor.numel();
    const bool lazy_bias = name.find("learnable_bias") != std::string::npos;
    EXPECT_EQ(model.decays(name), tensor.dim() == 2 && !lazy_bias) << name;
  }
  EXPECT_EQ(decayed + others, count_parameters(model.config()).total);
}

TEST(LanguageModel, Cache_RejectsGradients) {
  LanguageModel model(small("lazy"), 1);
  KVCache cache;
  EXPECT_THROW(model.forward(random_ids({1, 3}, 97, 1), {.cache = &cache}), Error);
  EXPECT_THROW(model.forward(at::zeros({3}, at::kLong)), Error);
  EXPECT_THROW(model.set_compute_dtype(at::kHalf), Error);
}

}  // namespace
}  // namespace lazy
