#include "train/validation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/forward_options.h"
#include "tiny_run.h"
#include "train/batches.h"
#include "train/throughput.h"

namespace lazy::train {
namespace {

constexpr int64_t kLength = 48;

struct Setting {
  Sequences held_out;
  LanguageModel model;
};

SequenceOptions in_order() {
  SequenceOptions options;
  options.length = kLength;
  options.shuffle = false;
  return options;
}

ModelConfig shape(const std::string& kind) {
  ModelConfig config;
  config.vocab_size = Sequences(tiny_corpus(), "validation", in_order()).vocab_size();
  config.hidden_size = 64;
  config.num_layers = 2;
  config.attention.num_heads = config.attention.num_kv_heads = 2;
  config.attention.head_dim = 32;
  config.max_length = kLength;
  config.init_std = 0.2;  // so large that the attention weights are far from uniform
  if (kind == "lazy") {
    config.attention.normalizer = Normalizer::elastic;
    config.attention.distance_bias_window = 16;
  }
  return config;
}

Setting setting(const std::string& kind) {
  return {Sequences(tiny_corpus(), "validation", in_order()), LanguageModel(shape(kind), 3)};
}

TEST(Validation, ValidationLoss_IsReproducibleMean) {
  auto [held_out, model] = setting("lazy");
  double sum = 0;
  const int64_t sequences = 6, stride = held_out.size() / sequences;
  ASSERT_GT(stride, 1);  // so that the sampled sequences are spread over the whole split
  for (int64_t i = 0; i < sequences; ++i) {
    const Batch batch = read_batch(held_out, i * stride, 1, kLength);
    const at::Tensor logp = model.log_likelihood(batch.ids, batch.labels).first;
    sum -= logp.masked_select(batch.labels.ne(-100)).to(at::kDouble).sum().item<double>();
  }
  const double expected = sum / static_cast<double>(sequences * (kLength - 1));
  const double found = validation_loss(model, held_out, kLength, 2, 3).value();
  EXPECT_EQ(found, validation_loss(model, held_out, kLength, 2, 3).value());
  // Both values are means of several hundred float terms near 6.
  EXPECT_NEAR(found, expected, 16 * std::numeric_limits<float>::epsilon() * expected);
}

TEST(Validation, ShortSplit_CountsEachSequenceOnce) {
  auto [held_out, model] = setting("transformer");
  const int64_t all = held_out.size();
  ASSERT_GT(all, 4);
  ASSERT_NE(all % 4, 0) << "the last batch should be incomplete";
  const double in_one = validation_loss(model, held_out, kLength, all, 1).value();
  const double in_fours = validation_loss(model, held_out, kLength, 4, 1 << 20).value();
  EXPECT_NEAR(in_one, in_fours, 16 * std::numeric_limits<float>::epsilon() * in_one);
}

TEST(Validation, BitsPerByte_DividesByBytesPerToken) { EXPECT_DOUBLE_EQ(bits_per_byte(std::log(8.0), 1.5), 2.0); }

TEST(Validation, Softmax_ReleasesNoMass) {
  auto [held_out, model] = setting("transformer");
  const Scalars list = attention_statistics(model, held_out, kLength, 4);
  std::map<std::string, double> s(list.begin(), list.end());
  // The row sums of softmax are 1 up to the rounding error of a sum of at most kLength floats.
  EXPECT_NEAR(s.at("attention/released_mass"), 0, kLength * std::numeric_limits<float>::epsilon());
  EXPECT_EQ(s.at("attention/alive_fraction"), 1);
  EXPECT_NEAR(s.at("attention/sink_ratio") + s.at("attention/density"), 1,
              kLength * std::numeric_limits<float>::epsilon());
  EXPECT_GT(s.at("attention/sink_ratio"), 1.0 / kLength);  // the first row, with one key, contributes 1 / kLength
  EXPECT_EQ(s.count("attention/tau_mean"), 0u);
}

TEST(Validation, Elastic_ReleasesMass) {
  auto [held_out, model] = setting("lazy");
  const Scalars list = attention_statistics(model, held_out, kLength, 4);
  std::map<std::string, double> s(list.begin(), list.end());
  EXPECT_GT(s.at("attention/released_mass"), 0);
  EXPECT_LT(s.at("attention/alive_fraction"), 1);
  EXPECT_EQ(s.at("attention/tau_mean"), -1);
  EXPECT_DOUBLE_EQ(s.at("attention/density"), 1 - s.at("attention/sink_ratio") - s.at("attention/released_mass"));
}

TEST(Throughput, Flops_CountUsefulArithmetic) {
  ModelConfig config;  // the defaults: 24 layers of width 1024, 16 heads of 64, vocabulary 32000
  const auto count = count_parameters(config);
  const double weights = 6.0 * static_cast<double>(count.untied - count.embedding);
  // Query t of a sequence of length T attends to t keys, which is (T + 1) / 2 on average. Each key costs 2 x 2
  // operations per channel in the forward pass. Forward and backward pass together cost three times as much.
  EXPECT_DOUBLE_EQ(flops_per_token(config, 4096), weights + 12.0 * 24 * 1024 * 4097 / 2);
  config.tie_embeddings = true;
  EXPECT_DOUBLE_EQ(flops_per_token(config, 4096),
                   weights + 12.0 * 24 * 1024 * 4097 / 2);  // unchanged, because a tied output head is also computed
  config.attention.window = 1;
  EXPECT_DOUBLE_EQ(flops_per_token(config, 4096), weights + 12.0 * 24 * 1024);
}

}  // namespace
}  // namespace lazy::train
