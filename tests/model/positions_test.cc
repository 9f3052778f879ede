// Tests of position encodings: definitions, configuration and rejected inputs.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/positions/positions.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace lazy {
namespace {

ModelConfig from_toml(const std::string& text) {
  Config config = Config::parse(
      "[model]\nvocab_size = 40\nhidden_size = 32\nnum_hidden_layers = 2\nnum_heads = 2\nmax_position_embeddings = "
      "24\n" +
      text);
  const ModelConfig m = ModelConfig::from_toml(config);
  config.check_all_used();
  return m;
}

std::string error(const std::string& text) {
  return error_of([&] { from_toml(text); });
}

TEST(Positions, AlibiSlopes_OfTwelveHeadsMatchDefinition) {
  const std::vector<double> slopes = alibi_slopes(12);
  ASSERT_EQ(slopes.size(), 12u);
  for (int r = 1; r <= 8; ++r) EXPECT_DOUBLE_EQ(slopes[static_cast<size_t>(r - 1)], std::pow(2.0, -r));
  for (int r = 0; r < 4; ++r) EXPECT_DOUBLE_EQ(slopes[static_cast<size_t>(8 + r)], std::pow(2.0, -(r + 0.5)));
}

TEST(Positions, SinusoidalPositions_StayAccurateAtLargePositions) {
  const int64_t far = 1'000'000'007;
  const at::Tensor row = sinusoidal_positions(at::tensor({far}, at::kLong), 6)[0];
  for (int64_t d = 0; d < 6; ++d) {
    const double angle = static_cast<double>(far) * std::pow(10000.0, -static_cast<double>(d / 2 * 2) / 6);
    EXPECT_NEAR(row[d].item<double>(), d % 2 ? std::cos(angle) : std::sin(angle), 1e-6) << d;
  }
}

TEST(Positions, LearnedPositions_RejectLongerInput) {
  LanguageModel model(from_toml("kind = \"transformer\"\npositions = \"learned\""), 1);
  const at::NoGradGuard no_grad;
  model.forward(at::ones({1, 24}, at::kLong));
  KVCache cache;
  model.forward(at::ones({1, 20}, at::kLong), {.cache = &cache});
  EXPECT_THAT(error_of([&] {
                model.forward(at::ones({1, 5}, at::kLong), {.cache = &cache});
              }),
              Names({"max_position_embeddings", 24, 25}));
}

TEST(Positions, SavedModel_RoundTrips) {
  for (const char* keys : {"positions = \"learned\"", "positions = \"sinusoidal\"",
                           "positions = \"alibi\"\nalibi_trainable = true", "positions = \"none\"",
                           "positions = \"transformer_xl\"\nsegment_length = 8\nmemory_length = 5\nclamp_length = 9",
                           "partial_rotary_factor = 0.5\nrope_interleaved = true", "normalizer = \"softmax_sink\""}) {
    const ModelConfig config = from_toml("kind = \"transformer\"\n" + std::string(keys));
    EXPECT_EQ(config.architecture(), "LazyForCausalLM") << keys;
    LanguageModel model(config, 3);
    const testing::TemporaryFolder folder;
    model.save(folder.path());
    LanguageModel again = LanguageModel::load(folder.path());
    EXPECT_EQ(again.config().to_json(), config.to_json()) << keys;
    const at::NoGradGuard no_grad;
    const at::Tensor ids = at::arange(12, at::kLong).unsqueeze(0);
    EXPECT_TRUE(at::equal(model.forward(ids).hidden, again.forward(ids).hidden)) << keys;
  }
}

TEST(Positions, FixedSlopes_AreNotTrained) {
  for (const bool trained : {false, true}) {
    LanguageModel model(
        from_toml(std::string("positions = \"alibi\"\nalibi_trainable = ") + (trained ? "true" : "false")), 1);
    size_t found = 0;
    for (const auto& item : model.parameters()) found += item.first.find("alibi_slopes") != std::string::npos;
    EXPECT_EQ(found, trained ? 2u : 0u);
    EXPECT_FALSE(model.decays("model.layers.0.attn.alibi_slopes"));
    EXPECT_EQ(count_parameters(model.config()).total, [&] {
      int64_t sum = 0;
      for (const auto& item : model.parameters()) sum += item.second.numel();
      return sum;
    }());
  }
}

TEST(Positions, ConfigErrors_NameField) {
  EXPECT_THAT(error("positions = \"absolute\""), Names({"model.positions", "rope", "none", "learned", "sinusoidal",
                                                        "alibi", "transformer_xl", "'absolute'"}));
  EXPECT_THAT(error("partial_rotary_factor = 0.2"), Names({"partial_rotary_factor", "head_dim", 16, 3}));
  EXPECT_THAT(error("partial_rotary_factor = 2"), Names({"partial_rotary_factor", 0, 1, 2}));
  LanguageModel model(from_toml("positions = \"alibi\""), 1);
  KVCache cache{.streaming = StreamingCache{.sinks = 2, .recent = 4}};
  const at::NoGradGuard no_grad;
  EXPECT_THROW(model.forward(at::ones({1, 3}, at::kLong), {.cache = &cache}), Error);
}

}  // namespace
}  // namespace lazy
