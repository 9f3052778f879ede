// The decoder against its definition: logits, loss, every gradient, KV cache, precision, hooks.
#include "model/language_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "model/loss.h"
#include "model/reference_decoder.h"

namespace lazy {
namespace {

using testing::copy_weights;
using testing::ReferenceDecoder;

struct Shape {
  const char* name;
  ModelConfig config;
};

ModelConfig small(const char* kind) {
  ModelConfig c{.vocab_size = 97,
                .hidden_size = 48,
                .num_layers = 2,
                .num_heads = 4,
                .num_kv_heads = 4,
                .head_dim = 16,
                .intermediate_size = 80,
                .max_length = 64};
  c.init_std = 0.15;  // large enough that attention, and the offset's cut, do something
  if (std::string(kind) == "lazy") {
    c.normalizer = "elastic";
    c.distance_bias_window = 12;
    c.distance_bias_init_std = 0.5;
    c.rope_base = 1.5e5;
  }
  return c;
}

std::vector<Shape> shapes() {
  std::vector<Shape> out = {{"softmax", small("transformer")}, {"lazy", small("lazy")}};
  out.push_back({"softmax_grouped_tied", small("transformer")});
  out.back().config.num_kv_heads = 2;
  out.back().config.tie_embeddings = true;
  out.push_back({"lazy_grouped_tied", small("lazy")});
  out.back().config.num_kv_heads = 1;
  out.back().config.tie_embeddings = true;
  out.push_back({"lazy_window", small("lazy")});
  out.back().config.window = 9;
  out.push_back({"lazy_fixed_constant_offset", small("lazy")});
  out.back().config.offset = "constant";
  out.back().config.offset_trainable = false;
  out.back().config.offset_init = -0.05;
  out.push_back({"lazy_positive_offset", small("lazy")});
  out.back().config.offset_init = 0.5;
  return out;
}

at::Tensor random_ids(at::IntArrayRef shape, int64_t vocabulary, uint64_t seed) {
  return at::randint(0, vocabulary, shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kLong));
}

// Root of the mean square difference. Of a handful of numbers the largest difference would be luck; at fp32's scale
// one wrong element still dominates this.
double distance(const at::Tensor& a, const at::Tensor& exact) {
  return (a.detach().to(at::kDouble) - exact.detach().to(at::kDouble)).square().mean().sqrt().item<double>();
}

// Two references: at most twice as far from float64 as a plain fp32 computation, plus one rounding.
void expect_close(const at::Tensor& ours, const at::Tensor& plain_fp32, const at::Tensor& exact,
                  const std::string& what) {
  const double rounding =
      std::numeric_limits<float>::epsilon() / 2 * exact.detach().to(at::kDouble).square().mean().sqrt().item<double>();
  EXPECT_LE(distance(ours, exact), 2 * distance(plain_fp32, exact) + rounding) << what;
}

class Decoder : public ::testing::TestWithParam<Shape> {};

TEST_P(Decoder, LogitsLossAndGradientsMatchTheDefinition) {
  const ModelConfig& config = GetParam().config;
  LanguageModel model(config, 3);
  const at::Tensor ids = random_ids({2, 37}, config.vocab_size, 1);
  at::Tensor labels = random_ids({2, 37}, config.vocab_size, 2);
  labels[0].narrow(0, 30, 7).fill_(kIgnoredLabel);
  const ReferenceDecoder exact(config, copy_weights(model, at::kDouble)),
      plain(config, copy_weights(model, at::kFloat));

  expect_close(model.logits(model.forward(ids).hidden), plain.logits(ids), exact.logits(ids), "logits");
  const at::Tensor loss = model.loss(ids, labels), exact_loss = exact.loss(ids, labels),
                   plain_loss = plain.loss(ids, labels);
  const at::Tensor exact_tokens = exact.log_likelihood(ids, labels), plain_tokens = plain.log_likelihood(ids, labels);
  expect_close(model.log_likelihood(ids, labels).first, plain_tokens, exact_tokens, "log-likelihood");
  // One number may be lucky; a mean is at most as far off as the root mean square of its terms.
  EXPECT_LE(distance(loss, exact_loss), 2 * distance(plain_tokens, exact_tokens) + 6e-8 * exact_loss.item<double>());
  loss.backward();
  exact_loss.backward();
  plain_loss.backward();
  for (const auto& [name, tensor] : model.parameters()) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    ASSERT_GT(exact.weights().at(name).grad().abs().max().item<double>(), 0) << name;
    expect_close(tensor.grad(), plain.weights().at(name).grad(), exact.weights().at(name).grad(), name);
  }
}

TEST_P(Decoder, CachedForwardEqualsTheFullOne) {
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
  for (const int64_t n : {1, 16, 1, 1, 7, 14}) {  // a prompt in chunks, single tokens between
    parts.push_back(model.logits(model.forward(ids.narrow(1, start, n), {.cache = &cache}).hidden));
    start += n;
    EXPECT_EQ(cache.length, start);
  }
  ASSERT_EQ(start, ids.size(1));
  expect_close(at::cat(parts, 1), plain, exact, "cached");
  expect_close(full, plain, exact, "full");
}

INSTANTIATE_TEST_SUITE_P(Shapes, Decoder, ::testing::ValuesIn(shapes()),
                         [](const auto& info) { return info.param.name; });

TEST(LanguageModel, GradientsAccumulateAndScaleWithTheLoss) {
  LanguageModel model(small("lazy"), 3);
  const at::Tensor ids = random_ids({2, 20}, 97, 1), labels = random_ids({2, 20}, 97, 2);
  model.loss(ids, labels).backward();
  std::vector<at::Tensor> once;
  for (const auto& [name, tensor] : model.parameters()) once.push_back(tensor.grad().clone());
  (model.loss(ids, labels) * 4).backward();  // a power of two scales without rounding
  for (size_t i = 0; i < once.size(); ++i) {
    const auto& [name, tensor] = model.parameters()[i];
    EXPECT_TRUE(at::allclose(tensor.grad(), once[i] * 5, 2e-7, 0)) << name;
  }
}

TEST(LanguageModel, ChangesToParametersInPlaceReachTheProducts) {
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

TEST(LanguageModel, LossInSlicesEqualsTheWhole) {
  // A vocabulary large enough that 300 rows make several slices.
  const int64_t rows = 300, width = 24, vocabulary = 20000;
  at::Generator generator = at::detail::createCPUGenerator(1);
  const at::Tensor hidden = at::randn({rows, width}, generator).requires_grad_(true);
  const at::Tensor weight = at::randn({vocabulary, width}, generator).mul_(0.2).requires_grad_(true);
  at::Tensor labels = random_ids({rows}, vocabulary, 2);
  labels.narrow(0, 60, 70).fill_(kIgnoredLabel);
  const auto reference = [&](at::ScalarType dtype) {
    const at::Tensor h = hidden.detach().to(dtype, false, true).requires_grad_(true),
                     w = weight.detach().to(dtype, false, true).requires_grad_(true);
    const at::Tensor loss = at::nll_loss(at::log_softmax(at::linear(h, w), 1), labels);
    loss.backward();
    return std::array{loss.detach(), h.grad(), w.grad()};
  };
  const auto exact = reference(at::kDouble), plain = reference(at::kFloat);
  const at::Tensor loss = linear_cross_entropy(hidden, weight.detach(), weight, labels);
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), exact[0].item<double>(), 1e-6 * exact[0].item<double>());
  expect_close(hidden.grad(), plain[1], exact[1], "d hidden");
  expect_close(weight.grad(), plain[2], exact[2], "d weight");

  const auto [likelihood, best] = linear_log_likelihood(hidden, weight, labels);
  const at::Tensor logits = at::linear(hidden, weight).detach();
  EXPECT_TRUE(at::equal(best, logits.argmax(1).eq(labels)));
  const auto used = labels.ne(kIgnoredLabel);
  EXPECT_EQ(likelihood.masked_select(used.logical_not()).abs().sum().item<float>(), 0);
  EXPECT_NEAR(-likelihood.sum().item<double>() / used.sum().item<double>(), exact[0].item<double>(), 1e-5);
}

TEST(LanguageModel, NoLabelsMeansNoLoss) {
  LanguageModel model(small("lazy"), 3);
  const at::Tensor loss = model.loss(random_ids({1, 5}, 97, 1), at::full({1, 5}, kIgnoredLabel, at::kLong));
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 0);
  for (const auto& [name, tensor] : model.parameters()) EXPECT_EQ(tensor.grad().abs().sum().item<float>(), 0) << name;
}

TEST(LanguageModel, LogLikelihoodAgreesWithLogits) {
  LanguageModel model(small("lazy"), 6);
  const at::Tensor ids = random_ids({2, 11}, 97, 1), labels = random_ids({2, 11}, 97, 2);
  const auto [likelihood, best] = model.log_likelihood(ids, labels);
  const at::NoGradGuard guard;
  const at::Tensor logits = model.logits(model.forward(ids).hidden);
  const at::Tensor expected = at::log_softmax(logits, 2).gather(2, labels.unsqueeze(2)).squeeze(2);
  EXPECT_TRUE(at::allclose(likelihood, expected, 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(best, logits.argmax(2).eq(labels)));
}

TEST(LanguageModel, StatisticsAndAttentionInputsPerLayer) {
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
    EXPECT_TRUE(stats.select(0, 2).select(2, 0).eq(0).all().item<bool>()) << "at i = 1 and tau = -1 nothing is alive";
  }
}

TEST_P(Decoder, BFloat16IsWithinTwiceItsRoundings) {
  const ModelConfig& config = GetParam().config;
  LanguageModel model(config, 3);
  model.set_compute_dtype(at::kBFloat16);
  const at::Tensor ids = random_ids({4, 50}, config.vocab_size, 1), labels = random_ids({4, 50}, config.vocab_size, 2);
  const ReferenceDecoder exact(config, copy_weights(model, at::kDouble));
  const ReferenceDecoder rounded(config, copy_weights(model, at::kFloat), /*bf16=*/true);
  const ForwardResult forward = model.forward(ids);
  EXPECT_EQ(forward.hidden.scalar_type(), at::kBFloat16);
  expect_close(model.logits(forward.hidden), rounded.logits(ids), exact.logits(ids), "logits");
  model.loss(ids, labels).backward();
  exact.loss(ids, labels).backward();
  rounded.loss(ids, labels).backward();
  for (const auto& [name, tensor] : model.parameters()) {
    EXPECT_EQ(tensor.grad().scalar_type(), at::kFloat) << name;
    expect_close(tensor.grad(), rounded.weights().at(name).grad(), exact.weights().at(name).grad(), name);
  }
}

TEST(LanguageModel, TheSeedDecidesTheWeights) {
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

TEST(LanguageModel, DecayLeavesOutNormsBiasesAndOffsets) {
  const LanguageModel model(small("lazy"), 1);
  int64_t decayed = 0, others = 0;
  for (const auto& [name, tensor] : model.parameters()) {
    (LanguageModel::decays(name) ? decayed : others) += tensor.numel();
    const bool lazy_bias = name.find("learnable_bias") != std::string::npos;
    EXPECT_EQ(LanguageModel::decays(name), tensor.dim() == 2 && !lazy_bias) << name;
  }
  EXPECT_EQ(decayed + others, count_parameters(model.config()).total);
}

TEST(LanguageModel, ACacheRefusesGradients) {
  LanguageModel model(small("lazy"), 1);
  KVCache cache;
  EXPECT_THROW(model.forward(random_ids({1, 3}, 97, 1), {.cache = &cache}), Error);
  EXPECT_THROW(model.forward(at::zeros({3}, at::kLong)), Error);
  EXPECT_THROW(model.set_compute_dtype(at::kHalf), Error);
}

}  // namespace
}  // namespace lazy
