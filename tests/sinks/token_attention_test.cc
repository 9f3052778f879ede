#include "sinks/token_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "full_matrices.h"
#include "model/mixers/registry.h"
#include "sinks/attention_maps.h"

namespace lazy::sinks {
namespace {

at::Tensor ids_of(int64_t count) { return (at::arange(count, at::kLong) * 37 + 5) % 300; }

struct Case {
  std::string normalizer;
  double tau;
  int64_t window, kv_heads;
};

TEST(TokenAttention, TokenAttention_MatchesFullMatrices) {
  for (const Case& c : {Case{"softmax", 0, -1, 4}, Case{"elastic", -1, -1, 2}, Case{"elastic", -1, 9, 4}}) {
    SCOPED_TRACE(c.normalizer);
    LanguageModel model = small_model(c.normalizer, c.tau, c.window, c.kv_heads);
    const int64_t length = 30, first = 7;
    const auto full = full_weights(model, ids_of(length));
    const TokenAttention found = token_attention(model, ids_of(length), first);
    EXPECT_EQ(found.statistics.sizes(), at::IntArrayRef({3, length - first, 3, 4}));
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t head = 0; head < 4; ++head) {
        const at::Tensor& weights = full[static_cast<size_t>(layer)][static_cast<size_t>(head)];
        const at::Tensor row = found.weights[static_cast<size_t>(layer)][head].to(at::kDouble);
        EXPECT_TRUE(at::allclose(row, weights[length - 1], 1e-5, 1e-6));
        for (int64_t query = first; query < length; ++query) {
          const at::Tensor statistics = found.statistics.select(1, query - first).select(1, layer).select(1, head);
          EXPECT_NEAR(statistics[0].item<double>(), weights[query][0].item<double>(), 1e-6);
          EXPECT_NEAR(statistics[1].item<double>(), 1 - weights[query].sum().item<double>(), 1e-5);
          // A weight that is zero up to rounding may be nonzero in only one of the two results.
          EXPECT_NEAR(statistics[2].item<double>(), weights[query].gt(0).sum().item<double>(), 1);
        }
      }
    }
    EXPECT_FALSE(token_attention(model, ids_of(length), first, true).weights[0].defined());
  }
}

TEST(TokenAttention, TransformerXl_IsReadFromMatrices) {
  ModelConfig config = small_model("softmax").config();
  config.positions.kind = PositionKind::transformer_xl;
  LanguageModel model(config, 5);
  const auto rows = attention_weights(model, ids_of(12), {{1, 2}});
  const TokenAttention found = token_attention(model, ids_of(12), 11);
  for (size_t key = 0; key < 12; ++key) {
    EXPECT_NEAR(found.weights[1][2][static_cast<int64_t>(key)].item<double>(), rows[0][11][key], 1e-6);
  }
}

TEST(TokenAttention, LayerWithoutAttention_HasNoWeights) {
  ModelConfig config = small_model("softmax").config();
  config.mixer = find_mixer("mamba2")->defaults;
  config.mixer.type = MixerType::mamba2;
  config.mixer.heads = 2;
  mixer_kind(config).infer_sizes(config);
  EXPECT_EQ(small_model("softmax").config().num_attention_layers(), 3);
  EXPECT_EQ(config.num_attention_layers(), 0);
  LanguageModel recurrent(config, 5);
  EXPECT_THROW(token_attention(recurrent, ids_of(8), 0), Error);
  config.mixer.attention_layers = {1};
  EXPECT_EQ(config.num_attention_layers(), 1);
  LanguageModel model(config, 5);
  const TokenAttention found = token_attention(model, ids_of(8), 0);
  EXPECT_FALSE(found.weights[0].defined());
  EXPECT_TRUE(found.weights[1].defined());
  EXPECT_TRUE(found.statistics.select(2, 0).isnan().all().item<bool>());
  EXPECT_FALSE(found.statistics.select(2, 1).isnan().any().item<bool>());
  EXPECT_THROW(token_attention(model, ids_of(8), 8), Error);
}

}  // namespace
}  // namespace lazy::sinks
