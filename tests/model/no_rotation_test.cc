// Tests of rope_theta 0: without RoPE, only a distance bias makes the results depend on positions.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "support/small_models.h"
#include "temporary_folder.h"

namespace lazy {
namespace {

ModelConfig config(int64_t bias_window) {
  ModelConfig c = small_config();
  c.num_layers = 1;
  c.positions.rope_base = 0;
  c.attention.distance_bias_window = bias_window;
  return c;
}

at::Tensor last_state(LanguageModel& model, std::vector<int64_t> ids) {
  const at::NoGradGuard no_grad;
  return model.forward(at::tensor(ids, at::kLong).unsqueeze(0)).hidden.select(1, static_cast<int64_t>(ids.size()) - 1);
}

TEST(NoRotation, WithoutBias_EarlierTokensArePermutable) {
  LanguageModel plain(config(0), 1), biased(config(8), 1);
  EXPECT_TRUE(at::allclose(last_state(plain, {3, 7, 9, 4}), last_state(plain, {9, 3, 7, 4}), 1e-4, 1e-5));
  EXPECT_FALSE(at::allclose(last_state(biased, {3, 7, 9, 4}), last_state(biased, {9, 3, 7, 4}), 1e-2, 1e-2));
}

TEST(NoRotation, Gradients_ReachQueriesAndKeys) {
  LanguageModel model(config(8), 1);
  const at::Tensor ids = at::tensor({3, 7, 9, 4, 1, 2}, at::kLong).unsqueeze(0);
  model.loss(ids, ids).backward();
  for (const auto& [name, parameter] : model.parameters()) {
    EXPECT_TRUE(parameter.grad().defined() && parameter.grad().abs().sum().item<double>() > 0) << name;
  }
}

TEST(NoRotation, Model_RoundTripsAsLazyModel) {
  const testing::TemporaryFolder folder;
  LanguageModel model(config(0), 1);
  model.save(folder.path());
  EXPECT_FALSE(model.config().is_plain_llama());
  LanguageModel loaded = LanguageModel::load(folder.path());
  EXPECT_EQ(loaded.config().positions.rope_base, 0);
  EXPECT_TRUE(at::equal(last_state(model, {3, 7, 9}), last_state(loaded, {3, 7, 9})));
  nlohmann::json llama = loaded.config().to_json();
  llama["model_type"] = "llama";
  EXPECT_THROW(ModelConfig::from_json(llama, "config.json"), Error);
}

}  // namespace
}  // namespace lazy
