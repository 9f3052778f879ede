// Tests of TTT and Titans configurations: sizes that match Transformer++ of the paper, and configurations that are
// rejected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/mixers/registry.h"
#include "support/error_of.h"

namespace lazy {
namespace {

struct Size {
  const char* mixer;
  int64_t heads, intermediate;
  bool gate;
};

ModelConfig paper_size(int64_t hidden_size, const Size& size) {
  ModelConfig c{.hidden_size = hidden_size,
                .num_layers = 24,
                .attention = {.num_heads = 16, .num_kv_heads = 16, .head_dim = hidden_size / 16},
                .mlp = {.intermediate_size = size.intermediate}};
  c.mixer.type = *kMixerTypes.find(size.mixer);
  c.mixer.heads = size.heads;
  c.mixer.gate = size.gate;
  mixer_kind(c).infer_sizes(c);
  c.validate();
  return c;
}

// Parameter counts must be within 3 % of Transformer++, which has 373.9 and 777.9 million parameters with an untied
// head.
TEST(LearningConfigs, ParameterCounts_MatchTransformerPlusPlus) {
  const auto expect = [](int64_t hidden_size, int64_t intermediate,
                         const std::vector<std::pair<Size, int64_t>>& sizes) {
    const ModelConfig transformer{.hidden_size = hidden_size,
                                  .num_layers = 24,
                                  .attention = {.num_heads = 16, .num_kv_heads = 16, .head_dim = hidden_size / 16},
                                  .mlp = {.intermediate_size = intermediate}};
    const auto wanted = static_cast<double>(count_parameters(transformer).untied);
    for (const auto& [size, count] : sizes) {
      const ParameterCount counted = count_parameters(paper_size(hidden_size, size));
      EXPECT_EQ(counted.untied, count) << size.mixer;
      EXPECT_NEAR(static_cast<double>(counted.untied) / wanted, 1, 0.03) << size.mixer;
    }
  };
  expect(1024, 2816,
         {{{"ttt_linear", 16, 2816, false}, 375957248},
          {{"ttt_mlp", 16, 2560, false}, 368191232},
          {{"titans_lmm", 16, 2304, true}, 375369344},
          {{"titans_mac", 16, 1536, true}, 369248384},
          {{"titans_mag", 16, 1536, true}, 369223808},
          {{"titans_mal", 16, 1024, true}, 381759104}});
  expect(1536, 4096,
         {{{"ttt_linear", 16, 4096, false}, 782170368},
          {{"ttt_mlp", 16, 3840, false}, 778778880},
          {{"titans_lmm", 24, 3328, true}, 771556032},
          {{"titans_mac", 24, 2304, true}, 771812544},
          {{"titans_mag", 24, 2304, true}, 771775680},
          {{"titans_mal", 24, 1280, true}, 771703488}});
}

std::string validation_error(const char* mixer, const std::function<void(ModelConfig&)>& change) {
  ModelConfig c{.hidden_size = 64, .num_layers = 2, .attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 16}};
  c.mixer.type = *kMixerTypes.find(mixer);
  change(c);
  mixer_kind(c).infer_sizes(c);
  return error_of([&] { c.validate(); });
}

TEST(LearningConfigs, ConfigErrors_NameFieldAndExpectedValue) {
  for (const char* mixer : {"ttt_linear", "ttt_mlp", "titans_lmm", "titans_mac", "titans_mag", "titans_mal"}) {
    EXPECT_EQ(validation_error(mixer, [](ModelConfig&) {}), "") << mixer;
    EXPECT_THAT(validation_error(mixer, [](ModelConfig& c) { c.mixer.heads = 3; }),
                Names({"mixer.heads", "key_dim", "hidden_size", 64, 3, 21}));
    EXPECT_THAT(validation_error(mixer, [](ModelConfig& c) { c.mixer.value_dim = 8; }),
                Names({"mixer.value_dim", "key_dim", 64, 8}));
  }
  EXPECT_THAT(validation_error("ttt_mlp", [](ModelConfig& c) { c.mixer.heads = 64; }), Names({"mixer.key_dim", 1}));
  EXPECT_THAT(validation_error("titans_lmm", [](ModelConfig& c) { c.attention.window = 16; }),
              Names({"window_size", -1, "titans_lmm", 16}));
  EXPECT_THAT(validation_error("titans_mac", [](ModelConfig& c) { c.attention.window = 16; }),
              Names({"window_size", -1, "mixer.segment", 64, "titans_mac", 16}));
  EXPECT_THAT(validation_error("titans_mac", [](ModelConfig& c) { c.mixer.chunk = 32; }),
              Names({"mixer.chunk", "mixer.segment", 64, 32}));
  EXPECT_THAT(validation_error("titans_mac", [](ModelConfig& c) { c.mixer.segment = 5000; }),
              Names({"mixer.segment", 1, "max_position_embeddings", ModelConfig().max_length, 5000}));
  EXPECT_THAT(validation_error("titans_mag", [](ModelConfig& c) { c.mixer.chunk = 5000; }),
              Names({"mixer.chunk", 1, "max_position_embeddings", ModelConfig().max_length, 5000}));
  EXPECT_THAT(
      validation_error("titans_mag", [](ModelConfig& c) { c.attention.num_heads = 2, c.attention.num_kv_heads = 2; }),
      Names({"num_heads", "head_dim", "hidden_size", 64, 2, 16}));
  EXPECT_THAT(validation_error("titans_mag", [](ModelConfig& c) { c.positions.kind = PositionKind::alibi; }),
              Names({"positions", "rope", "none", "learned", "sinusoidal", "alibi"}));
  EXPECT_THAT(validation_error("titans_mac", [](ModelConfig& c) { c.positions.partial_rotary_factor = 0.5; }),
              Names({"partial_rotary_factor", "rope_interleaved", "0.5"}));
  EXPECT_THAT(validation_error("titans_mal", [](ModelConfig& c) { c.attention.normalizer = Normalizer::elastic; }),
              Names({"normalizer", "softmax", "elastic"}));
}

}  // namespace
}  // namespace lazy
