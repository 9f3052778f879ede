// Computes all measures for models whose weights are loaded one layer at a time, and for Transformer-XL, which has a
// different attention. The numbers must equal the numbers of a model in memory or, for Transformer-XL, of full
// matrices.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/temporary_folder.h"
#include "sinks/analysis.h"
#include "sinks/scoped_interventions.h"
#include "support/error_of.h"
#include "support/small_models.h"

namespace lazy::sinks {
namespace {

ModelConfig of_bytes(const char* family) {
  ModelConfig config = small_family(family);
  config.vocab_size = 300;
  config.max_length = 64;
  return config;
}

const std::string kText = [] {
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += fmt::format("Number {} is the square root of {}, and {} comes next; nobody minds.\n", i, i * i, i + 1);
  return text;
}();

nlohmann::ordered_json all_measures(LanguageModel& model, const Interventions& interventions) {
  const auto tokenizer = load_tokenizer("bytes");
  AnalysisOptions options;
  options.samples = 7;
  options.sink_samples = 20;
  options.measures = kFurtherMeasures;
  options.interventions = interventions;
  options.progress = false;
  const Analysis result = analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options);
  return to_json(result, model.config(), "model", "text.txt", options, "lazy sinks");
}

TEST(LayerAtATime, Measures_MatchWholeModel) {
  for (const char* family : {"gpt2", "llama", "gpt_oss", "gemma3_text", "transfo-xl"}) {
    SCOPED_TRACE(family);
    const lazy::testing::TemporaryFolder folder;
    LanguageModel(of_bytes(family), 5).save(folder.path());
    LanguageModel whole = LanguageModel::load(folder.path());
    LanguageModel parts = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
    EXPECT_EQ(all_measures(parts, {}), all_measures(whole, {}));
    // A value that an intervention inserts into a later layer must come from the same sample, even if several samples
    // are processed together.
    Interventions change;
    change.add("layers.2.residual[3]=0.5*layers.0.residual[1] - layers.1.mlp.output[2]")
        .set_zero("layers.1.attention.weights[:,:,0]");
    const auto changed = all_measures(whole, change);
    EXPECT_EQ(all_measures(parts, change), changed);
    EXPECT_NE(changed, all_measures(whole, {}));
  }
}

TEST(LayerAtATime, ParameterInterventions_AreRejected) {
  const lazy::testing::TemporaryFolder folder;
  LanguageModel(of_bytes("gpt2"), 5).save(folder.path());
  LanguageModel parts = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
  Interventions zero, copied;
  zero.set_zero("h.*.attn.c_attn.bias[0:24]");
  copied.add("layers.1.residual[0]=wpe.weight[3]");
  EXPECT_THAT(error_of([&] { ScopedInterventions(parts, zero); }),
              Names({"--set-zero", "h.*.attn.c_attn.bias[0:24]=0"}));
  EXPECT_THAT(error_of([&] { ScopedInterventions(parts, copied); }),
              Names({"--add", "layers.1.residual[0]=wpe.weight[3]"}));
}

// Compares the attention statistics of the operator with the first column, the row sums and the positive entries of
// full matrices.
TEST(TransformerXlSinks, StatisticsAndMaps_MatchMatrices) {
  const at::NoGradGuard guard;
  for (const int64_t segment : {0, 7}) {
    ModelConfig config = of_bytes("transfo-xl");
    if (segment > 0)
      config.attention.window = -1, config.positions.segment_length = segment, config.positions.memory_length = 4;
    LanguageModel model(config, 6);
    const at::Tensor ids = at::remainder(at::arange(31, at::kLong) * 37 + 11, 300).unsqueeze(0);
    std::map<std::string, at::Tensor> matrices;
    ActivationHooks probes;
    probes.read("layers.*.attention.weights",
                [&](const std::string& name, const at::Tensor& t) { matrices[name] = t.to(at::kDouble); });
    model.forward(ids, {.activation_hooks = &probes});
    ASSERT_EQ(matrices.size(), 3U);
    const auto stats = model.forward(ids, {.return_stats = true}).stats;
    MeasureSum sum(segments_of(config));
    sum.add(stats, layer_windows(config));
    const Measures measures = sum.result();
    std::vector<std::pair<int64_t, int64_t>> heads;
    for (int64_t layer = 0; layer < 3; ++layer) {
      const at::Tensor w = matrices.at(fmt::format("layers.{}.attention.weights", layer));
      EXPECT_TRUE(at::allclose(w.sum(-1), at::ones_like(w.sum(-1)), 1e-6, 1e-6));
      EXPECT_TRUE(at::allclose(stats[static_cast<size_t>(layer)][0].to(at::kDouble), w.select(-1, 0), 1e-5, 1e-6));
      for (int64_t head = 0; head < 4; ++head) {
        heads.emplace_back(layer, head);
        EXPECT_NEAR(measures.sink_ratio[static_cast<size_t>(layer)][static_cast<size_t>(head)],
                    w[0][head].select(-1, 0).mean().item<double>(), 1e-6);
        EXPECT_EQ(measures.alive_fraction[static_cast<size_t>(layer)][static_cast<size_t>(head)], 1)
            << "with softmax all visible keys have positive weights";
      }
    }
    const auto rows = attention_weights(model, ids, heads);
    for (size_t n = 0; n < heads.size(); ++n) {
      const at::Tensor w = matrices.at(fmt::format("layers.{}.attention.weights", heads[n].first))[0][heads[n].second];
      for (int64_t i = 0; i < 31; ++i) {
        for (int64_t j = 0; j <= i; ++j)
          EXPECT_EQ(rows[n][static_cast<size_t>(i)][static_cast<size_t>(j)], w[i][j].item<double>());
      }
    }
  }
}

TEST(TransformerXlSinks, VisiblePairs_CountSegments) {
  EXPECT_EQ(visible_pairs(5, -1, {2, 0}), 1 + 2 + 1 + 2 + 1);
  EXPECT_EQ(visible_pairs(5, -1, {2, 1}), 1 + 2 + 2 + 3 + 2);
  EXPECT_EQ(visible_pairs(5, 2, {2, 1}), 1 + 2 + 2 + 2 + 2);
}

}  // namespace
}  // namespace lazy::sinks
