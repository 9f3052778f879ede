// Tests of Mamba2 folders in the format of the original Mamba program. The model must load, must give the same results
// as the same weights in FLA's layout, and must be saved under the original tensor names.
#include "model/families/families.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using nlohmann::json;
using testing::TemporaryFolder;

json published(int64_t width) {
  json config = json::parse(
      R"({"d_intermediate": 0, "n_layer": 2, "vocab_size": 93, "ssm_cfg": {"layer": "Mamba2"}, "attn_layer_idx": [],
    "attn_cfg": {}, "rms_norm": true, "residual_in_fp32": true, "fused_add_norm": true, "pad_vocab_size_multiple": 16,
    "tie_embeddings": true})");
  config["d_model"] = width;
  return config;
}

ModelConfig read(const json& config) { return ModelConfig::from_json(config, "config.json"); }

std::string refusal(const json& change) {
  json config = published(64);
  config.merge_patch(change);
  return error_of([&] { read(config); });
}

TEST(NativeMamba2, MissingSizes_AreInferred) {
  const ModelConfig small = read(published(64));
  EXPECT_EQ(small.mixer.type, MixerType::mamba2);
  EXPECT_EQ(small.vocab_size, 96) << "padded";
  EXPECT_EQ(small.mixer.heads, 2);
  EXPECT_EQ(small.mixer.value_dim, 64);
  EXPECT_EQ(small.mixer.state_size, 128);
  EXPECT_FALSE(small.mlp.enabled);
  EXPECT_EQ(small.norm.eps, 1e-5);
  EXPECT_TRUE(small.tie_embeddings);
  // mamba2-130m has 24 layers of width 768 and a vocabulary of 50277 tokens.
  json large = published(768);
  large["n_layer"] = 24;
  large["vocab_size"] = 50277;
  const ModelConfig m = read(large);
  EXPECT_EQ(m.vocab_size, 50288);
  EXPECT_EQ(m.mixer.heads, 24);
  EXPECT_EQ(count_parameters(m).total, 128989632);
  large["ssm_cfg"] = {{"layer", "Mamba2"}, {"d_state", 64}, {"headdim", 96}, {"ngroups", 4}, {"expand", 3}};
  const ModelConfig other = read(large);
  EXPECT_EQ(other.mixer.heads, 24);
  EXPECT_EQ(other.mixer.state_size, 64);
  EXPECT_EQ(other.mixer.groups, 4);
}

TEST(NativeMamba2, UnsupportedValues_AreRejected) {
  EXPECT_EQ(refusal(json::object()), "");
  EXPECT_THAT(
      refusal({{"ssm_cfg", {{"layer", nullptr}}}}),
      IsMessage("config.json: config.json: ssm_cfg.layer: expected Mamba2 (other values are not supported by this "
                "decoder), found \"Mamba1\""));
  EXPECT_THAT(refusal({{"attn_layer_idx", {1}}}), Names({"attn_layer_idx", "[1]"}));
  EXPECT_THAT(refusal({{"d_intermediate", 128}}), Names({"d_intermediate", 0, 128}));
  EXPECT_THAT(refusal({{"rms_norm", false}}), Names({"rms_norm", "false"}));
  EXPECT_THAT(refusal({{"ssm_cfg", {{"headdim", 48}}}}), Names({"headdim", 128, "expand", "d_model", 48}));
  EXPECT_THAT(refusal({{"ssm_cfg", {{"d_ssm", 64}}}}), Names({"d_ssm", 128, 64}));
  EXPECT_THAT(refusal({{"ssm_cfg", {{"ngroups", 3}}}}), Names({"mixer.groups", 1, 2, 3}));
  EXPECT_THAT(refusal({{"ssm_cfg", {{"D_has_hdim", true}}}}), Names({"D_has_hdim"}));
}

class NativeMamba2Folder : public ::testing::Test {
 protected:
  NativeMamba2Folder() {
    std::ofstream(folder.path() / "config.json") << published(64).dump();
    tensors = LanguageModel(read(published(64)), 7).stored();
    tensors.emplace_back("lm_head.weight", tensors.front().second);
    write();
  }
  void write() { write_safetensors(folder.path() / "model.safetensors", tensors); }
  TemporaryFolder folder;
  NamedTensors tensors;
};

TEST_F(NativeMamba2Folder, Folder_MatchesFlaLayoutAndRoundTrips) {
  LanguageModel model = LanguageModel::load(folder.path());
  // Create a model with the same weights from a configuration in FLA's layout.
  json fla = {{"model_type", "mamba2"}, {"vocab_size", 96},  {"hidden_size", 64},          {"num_hidden_layers", 2},
              {"head_dim", 64},         {"state_size", 128}, {"tie_word_embeddings", true}};
  LanguageModel same(ModelConfig::from_json(fla, "config.json"), 1);
  {
    const at::NoGradGuard no_grad;
    ASSERT_EQ(same.stored().size() + 1, tensors.size());
    for (size_t n = 0; n < same.stored().size(); ++n) same.stored()[n].second.copy_(tensors[n].second);
    const at::Tensor ids = at::arange(2, 42, at::kLong).unsqueeze(0);
    EXPECT_TRUE(at::equal(model.logits(model.forward(ids).hidden), same.logits(same.forward(ids).hidden)));
  }
  const TemporaryFolder copy;
  model.save(copy.path());
  const SafetensorsFile before(folder.path() / "model.safetensors"), after(copy.path() / "model.safetensors");
  EXPECT_EQ(before.names(), after.names());
  EXPECT_TRUE(after.has("backbone.embedding.weight") && after.has("backbone.layers.1.mixer.in_proj.weight") &&
              after.has("backbone.norm_f.weight"));
  for (const std::string& name : before.names())
    EXPECT_TRUE(at::equal(before.tensor(name), after.tensor(name))) << name;
  const json saved = json::parse(read_file(copy.path() / "config.json"));
  EXPECT_EQ(read(saved).to_json(), read(published(64)).to_json());
  for (const auto& [key, value] : saved.items())
    EXPECT_TRUE(published(64).contains(key)) << key << ": the original program reads no other fields";
  EXPECT_EQ(saved.at("ssm_cfg").at("layer"), "Mamba2");
}

TEST_F(NativeMamba2Folder, LoadError_ListsEveryMismatch) {
  for (auto& [name, tensor] : tensors) {
    if (name == "backbone.layers.0.mixer.D") tensor = at::ones({3});
    if (name == "backbone.layers.1.mixer.in_proj.weight") tensor = at::ones({4, 64});
    if (name == "backbone.layers.1.norm.weight") name = "backbone.layers.1.norm2.weight";
    if (name == "backbone.layers.0.mixer.A_log") tensor = at::ones({2}, at::kLong);
  }
  write();
  EXPECT_THAT(error_of([&] { LanguageModel::load(folder.path()); }),
              Names({1, "backbone.layers.1.norm.weight", "backbone.layers.1.norm2.weight", 2,
                     "backbone.layers.0.mixer.D", "[2]", "[3]", "backbone.layers.1.mixer.in_proj.weight",
                     std::string("[514, 64]"), std::string("[4, 64]"), "backbone.layers.0.mixer.A_log", "F32", "I64"}));
}

}  // namespace
}  // namespace lazy
