// Tests the report of a text's activations at the hook points. Its statistics must match the tensors, and its saved
// tensors must match the values that hooks receive. Also tests invalid input.
#include "sinks/activations.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>

#include "full_matrices.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "support/error_of.h"
#include "support/small_gpt2.h"

namespace lazy::sinks {
namespace {
using testing::HasSubstr;

const std::vector<int64_t> kIds{3, 41, 41, 7, 12, 0, 29, 30};

double number(const at::Tensor& tensor) { return tensor.to(at::kDouble).item<double>(); }

TEST(ActivationReport, Statistics_MatchTensors) {
  for (const char* normalizer : {"softmax", "elastic"}) {
    LanguageModel model = small_model(normalizer);
    std::map<std::string, at::Tensor> seen;
    ActivationHooks probes;
    probes.read("*", [&](const std::string& name, const at::Tensor& t) { seen[name] = t[0].clone(); });
    ForwardOptions how;
    how.activation_hooks = &probes;
    const at::NoGradGuard guard;
    model.forward(at::tensor(kIds, at::kLong).unsqueeze(0), how);
    ActivationOptions options;
    options.read = {"*"};
    options.save = {"layers.1.*", "final.hidden"};
    const ActivationReport found = read_activations(model, kIds, options);
    ASSERT_EQ(found.places.size(), seen.size());
    for (const ActivationStatistics& s : found.places) {
      SCOPED_TRACE(s.name);
      const at::Tensor t = seen.at(s.name), finite = t.masked_select(t.isfinite()).to(at::kDouble);
      EXPECT_EQ(s.shape, t.sizes().vec());
      EXPECT_NEAR(s.mean, number(finite.mean()), 1e-6);
      EXPECT_NEAR(s.deviation, number(finite.std(false)), 1e-5);
      EXPECT_EQ(s.lowest, number(finite.min()));
      EXPECT_EQ(s.highest, number(finite.max()));
      const bool square = s.name.ends_with("scores") || s.name.ends_with("weights");
      ASSERT_EQ(s.norm.size(), square ? 0u : kIds.size());
      for (size_t i = 0; i < s.norm.size(); ++i) {
        const at::Tensor row = t[static_cast<int64_t>(i)].flatten().to(at::kDouble);
        EXPECT_NEAR(s.norm[i], number(row.norm()), 1e-6);
        EXPECT_NEAR(s.variance[i], number(row.var(true)), 1e-6);
      }
    }
    size_t saved = 0;
    for (const auto& [name, tensor] : found.tensors) {
      EXPECT_TRUE(at::equal(tensor, seen.at(name))) << name;
      EXPECT_TRUE(name.starts_with("layers.1.") || name == "final.hidden");
      ++saved;
    }
    EXPECT_EQ(saved, static_cast<size_t>(std::count_if(
                         seen.begin(), seen.end(), [](const auto& s) { return s.first.starts_with("layers.1."); })) +
                         1);
    // The attention statistics of the report must match the definition. They come from the same forward pass.
    const auto weights = full_weights(model, at::tensor(kIds, at::kLong));
    for (size_t l = 0; l < weights.size(); ++l) {
      for (size_t h = 0; h < weights[l].size(); ++h)
        EXPECT_NEAR(found.measures.sink_ratio[l][h], number(weights[l][h].select(1, 0).mean()), 1e-6);
    }
  }
}

TEST(ActivationReport, Matrices_AreNotReadByDefault) {
  LanguageModel model = small_gpt2(2);
  const ActivationReport found = read_activations(model, kIds, {});
  for (const ActivationStatistics& s : found.places)
    EXPECT_FALSE(s.name.ends_with("scores") || s.name.ends_with("weights")) << s.name;
  EXPECT_EQ(found.places.front().name, "embedding.tokens");
  EXPECT_EQ(found.places.back().name, "final.hidden");
  EXPECT_TRUE(found.tensors.empty());
  const auto json = to_json(found);
  EXPECT_EQ(json.at("places").at("embedding.positions").at("shape"), (std::vector<int64_t>{8, 24}));
  EXPECT_EQ(json.at("attention").at("sink_ratio").size(), 3u);
  EXPECT_THAT(to_table(found), HasSubstr("| layers.2.attention.heads | 8 x 4 x 6 |"));
}

TEST(ActivationReport, SavedTable_ContainsOnlySavedActivations) {
  LanguageModel model = small_gpt2(2);
  ActivationOptions options;
  options.save = {"layers.1.residual"};
  const ActivationReport found = read_activations(model, kIds, options);
  ASSERT_GT(found.places.size(), 1u);
  const std::string table = saved_table("out.safetensors", found);
  EXPECT_THAT(table, HasSubstr("|layers.1.residual|" + std::to_string(kIds.size()) + " x 24|"));
  EXPECT_THAT(table, Names({"layers.1.residual", "float32", "out.safetensors"}));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);  // three lines, the first of which is the header
}

TEST(ActivationReport, Report_ReflectsInterventions) {
  LanguageModel model = small_gpt2(2);
  ActivationOptions options;
  options.read = {"layers.?.residual"};
  const ActivationReport plain = read_activations(model, kIds, options);
  options.interventions.set_zero("layers.1.residual[2]");
  const ActivationReport changed = read_activations(model, kIds, options);
  EXPECT_EQ(changed.places[0].norm, plain.places[0].norm);
  EXPECT_EQ(changed.places[1].norm[2], 0);
  EXPECT_EQ(changed.places[1].norm[1], plain.places[1].norm[1]);
  EXPECT_NE(changed.places[2].norm[3], plain.places[2].norm[3]);
}

TEST(ActivationReport, InvalidName_ErrorNamesIt) {
  LanguageModel model = small_gpt2(2);
  EXPECT_THAT(error_of([&] {
                read_activations(model, kIds, {{"layers.0.residuel"}, {}, {}});
              }),
              IsMessage("probe: no probe point 'layers.0.residuel' in this model; did you mean 'layers.0.residual'?"));
  EXPECT_THAT(error_of([&] {
                read_activations(model, kIds, {{}, {"layers.7.*"}, {}});
              }),
              Names({"probe", "layers.7.*"}));
  EXPECT_THAT(error_of([&] { read_activations(model, {}, {}); }), Names({"probe"}));
  EXPECT_THAT(error_of([&] { read_activations(model, {3, 50}, {}); }), Names({"probe", 50}));
}

}  // namespace
}  // namespace lazy::sinks
