// Tests of families whose checkpoint layout differs from Llama's: the results must match transformers.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "as_transformers.h"
#include "core/config.h"
#include "family_cases.h"
#include "family_folders.h"
#include "model/forward_options.h"
#include "model/mxfp4.h"
#include "support/error_of.h"
#include "support/small_models.h"
#include "temporary_folder.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

TEST(LayoutsSlow, Gpt2Folders_MatchTransformers) { testing::expect_folders(testing::kGpt2, 10); }
TEST(LayoutsSlow, BloomFolders_MatchTransformers) { testing::expect_folders(testing::kBloom, 8); }
TEST(LayoutsSlow, GraniteSwaFolders_MatchTransformers) { testing::expect_folders(testing::kGraniteSwas, 6); }
TEST(LayoutsSlow, SmolLm3Folders_MatchTransformers) { testing::expect_folders(testing::kSmolLm3s, 6); }
TEST(LayoutsSlow, Olmo2Folders_MatchTransformers) { testing::expect_folders(testing::kOlmo2s, 4); }
TEST(LayoutsSlow, Phi3Folders_MatchTransformers) { testing::expect_folders(testing::kPhi3s, 14); }
TEST(LayoutsSlow, Gemma2Folders_MatchTransformers) { testing::expect_folders(testing::kGemma2s, 6); }
TEST(LayoutsSlow, Gemma3Folders_MatchTransformers) { testing::expect_folders(testing::kGemma3s, 6); }
TEST(LayoutsSlow, GptOssFolders_MatchTransformers) { testing::expect_folders(testing::kGptOss, 10); }

ModelConfig gpt2(const std::string& more = "") {
  Config config = Config::parse(
      "[model]\nkind = \"gpt2\"\nvocab_size = 31\nhidden_size = 20\nnum_hidden_layers = 2\nnum_heads = 4\n"
      "max_position_embeddings = 16\n" +
          more,
      "gpt2.toml");
  return ModelConfig::from_toml(config);
}

TEST(Gpt2, Config_GivesGpt2Architecture) {
  const ModelConfig c = gpt2();
  EXPECT_EQ(c.architecture(), "GPT2LMHeadModel");
  EXPECT_EQ(c.kind(), "gpt2");
  EXPECT_EQ(c.intermediate(), 80);
  // Number of parameters: wte and wpe; two norms, c_attn, c_proj and the MLP in each of two layers; the final norm.
  EXPECT_EQ(count_parameters(c).total,
            31 * 20 + 16 * 20 + 2 * (4 * 20 + 21 * 60 + 21 * 20 + 21 * 80 + 81 * 20) + 2 * 20);
  EXPECT_THAT(error_of([] { gpt2("positions = \"alibi\""); }), Names({"gpt2", "positions", "learned", "alibi"}));
  EXPECT_THAT(error_of([] { gpt2("normalizer = \"elastic\""); }), Names({"gpt2", "normalizer", "softmax", "elastic"}));
  EXPECT_THAT(error_of([] { gpt2("num_kv_heads = 2"); }), Names({"gpt2", "num_kv_heads", "num_heads", 4, 2}));
  EXPECT_THAT(error_of([] { gpt2("head_dim = 6"); }),
              Names({"gpt2", "head_dim", "hidden_size", 20, "num_heads", 4, 6}));
}

TEST(Gpt2, InitialWeights_MatchPublication) {
  ModelConfig c = gpt2("initializer_range = 0.3");
  c.hidden_size = 256, c.attention.head_dim = 64, c.mlp.intermediate_size = 0;
  const LanguageModel model(c, 3);
  for (const auto& [name, p] : model.parameters()) {
    const double mean = p.mean().item<double>(), std = p.std().item<double>();
    const bool branch =
        name.find("o_proj.weight") != std::string::npos || name.find("down_proj.weight") != std::string::npos;
    if (p.dim() == 2) {
      // The projections at the end of the branches are initialized with init_std / sqrt(2 * layers) = 0.3 / sqrt(4).
      EXPECT_NEAR(std, branch ? 0.15 : 0.3, 0.01) << name;
    } else {
      EXPECT_EQ(mean, name.ends_with("norm.weight") ? 1 : 0) << name;
    }
  }
}

// If the query bias is disabled, it is not a trained parameter. The saved folder contains zeros in its place, and its
// config.json says that the query bias is disabled.
TEST(Gpt2, QueryBias_CanBeDisabled) {
  const TemporaryFolder folder;
  LanguageModel model(gpt2("query_bias = false"), 3);
  EXPECT_EQ(model.stored().size(), model.parameters().size() + 2);
  const at::Tensor ids = at::randint(0, 31, {2, 9}, at::detail::createCPUGenerator(1), at::kLong);
  model.loss(ids, ids).backward();
  for (const auto& [name, p] : model.stored()) {
    EXPECT_EQ(p.grad().defined(), name.find("q_proj.bias") == std::string::npos) << name;
  }
  model.save(folder.path());
  EXPECT_FALSE(ModelConfig::from_directory(folder.path()).attention.query_bias);
  const at::Tensor bias = read_safetensors(folder / "model.safetensors").at("transformer.h.0.attn.c_attn.bias");
  EXPECT_TRUE(at::equal(bias.narrow(0, 0, 20), at::zeros({20})));
}

TEST(Layouts, Checkpointing_GivesSameGradients) {
  const at::Tensor ids = at::randint(0, 31, {2, 9}, at::detail::createCPUGenerator(1), at::kLong);
  for (const ModelConfig& config : {gpt2(), small_family("gemma2"), small_family("gemma3_text")}) {
    std::vector<std::vector<at::Tensor>> gradients;
    for (const auto how : {Checkpointing::none, Checkpointing::mlp, Checkpointing::attention, Checkpointing::full}) {
      LanguageModel model(config, 3);
      model.set_checkpointing(how);
      model.loss(ids, ids).backward();
      gradients.emplace_back();
      for (const auto& [name, p] : model.parameters()) gradients.back().push_back(p.grad());
      for (size_t i = 0; i < gradients[0].size(); ++i)
        EXPECT_TRUE(at::equal(gradients.back()[i], gradients[0][i])) << config.kind() << " " << name(how);
    }
  }
}

// bf16 has a significand of 8 bits: weights and activations are rounded with a relative error of up to 1/256.
TEST(Layouts, Bfloat16_IsCloseToFp32) {
  for (const ModelConfig& config : {gpt2("initializer_range = 0.2"), small_family("gemma3_text")}) {
    LanguageModel model(config, 3);
    const at::NoGradGuard guard;
    const at::Tensor ids = at::randint(0, 31, {2, 9}, at::detail::createCPUGenerator(1), at::kLong);
    const at::Tensor exact = model.logits(model.forward(ids).hidden);
    model.set_compute_dtype(at::kBFloat16);
    const at::Tensor rounded = model.logits(model.forward(ids).hidden);
    EXPECT_LE(testing::rms_distance(rounded, exact), 0.03 * exact.square().mean().sqrt().item<double>())
        << config.kind();
  }
}

// Gemma 3 multiplies the embeddings by a factor. transformers rounds this factor to the model's dtype before the
// multiplication.
TEST(Gemma3, EmbeddingScale_IsRoundedToComputeDtype) {
  const ModelConfig config = small_family("gemma3_text");
  LanguageModel model(config, 3);
  const at::NoGradGuard guard;
  const at::Tensor ids = at::arange(9, at::kLong).unsqueeze(0);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    model.set_compute_dtype(type);
    at::Tensor found;
    ActivationHooks probes;
    probes.read("embedding", [&](const std::string&, const at::Tensor& t) { found = t; });
    ForwardOptions options;
    options.activation_hooks = &probes;
    model.forward(ids, options);
    const at::Tensor table = model.parameters().front().second.to(type);
    const at::Tensor factor = at::scalar_tensor(std::sqrt(config.hidden_size), table.options());
    EXPECT_TRUE(at::equal(found, at::embedding(table, ids) * factor)) << at::toString(type);
  }
}

// One error message lists all missing and all unexpected tensors, with the names that the files of the folder use.
TEST(Gpt2, LoadError_ListsMissingAndUnexpectedTensors) {
  const TemporaryFolder folder;
  LanguageModel(gpt2(), 5).save(folder.path());
  auto tensors = read_safetensors(folder / "model.safetensors");
  tensors.erase("transformer.h.0.attn.c_attn.weight");
  tensors.erase("transformer.ln_f.bias");
  tensors["transformer.h.1.mlp.c_fc.weight"] = at::zeros({80, 20});
  tensors["transformer.h.2.ln_1.weight"] = at::zeros({20});
  write_safetensors(folder / "model.safetensors", NamedTensors(tensors.begin(), tensors.end()));
  EXPECT_THAT(error_of([&] { LanguageModel::load(folder.path()); }),
              Names({2, "transformer.h.0.attn.c_attn.weight", "transformer.ln_f.bias", 1, "transformer.h.2.ln_1.weight",
                     "transformer.h.1.mlp.c_fc.weight", std::string("[20, 80]"), std::string("[80, 20]")}));
}

TEST(Gpt2, UnsupportedValues_AreRejected) {
  const auto error = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(gpt2().to_json().dump());
    config[key] = value;
    return error_of([&] { ModelConfig::from_json(config, "config.json"); });
  };
  EXPECT_EQ(error("n_ctx", 4), "");
  EXPECT_THAT(error("activation_function", "silu"), Names({"activation_function", "gelu_new", "silu"}));
  EXPECT_THAT(error("add_cross_attention", true), Names({"add_cross_attention"}));
  EXPECT_THAT(error("n_head", 3), Names({"n_head", "hidden_size", 20, 3}));
  EXPECT_THAT(error("n_layer", nullptr), Names({"n_layer", "integer"}));
}

// In MXFP4, each byte contains two of 16 possible values, low nibble first. A group of 32 values is scaled by a power
// of two.
TEST(Mxfp4, Dequantization_MatchesDefinition) {
  const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const at::Tensor blocks = at::randint(0, 256, {3, 5, 2, 16}, at::kByte),
                   scales = at::randint(100, 150, {3, 5, 2}, at::kByte);
  const at::Tensor all = from_mxfp4(blocks, scales);
  ASSERT_EQ(all.sizes(), (std::vector<int64_t>{3, 64, 5}));
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t in = 0; in < 64; ++in) {
        const int byte = blocks[e][row][in / 32][in % 32 / 2].item<int>(), half = in % 2 ? byte >> 4 : byte & 15;
        const double value =
            (half & 8 ? -1 : 1) * values[half & 7] * std::exp2(scales[e][row][in / 32].item<int>() - 127);
        ASSERT_EQ(all[e][in][row].item<double>(), value);
      }
    }
  }
}

TEST(Mxfp4, InvalidTensors_AreRejected) {
  const TemporaryFolder folder;
  const auto error = [&](at::IntArrayRef blocks, at::IntArrayRef scales, at::ScalarType type) {
    write_safetensors(folder / "model.safetensors", {{"e.down_proj_blocks", at::zeros(blocks, type)},
                                                     {"e.down_proj_scales", at::zeros(scales, type)}});
    const auto file = without_mxfp4(std::make_unique<SafetensorsFile>(folder / "model.safetensors"));
    EXPECT_EQ(file->names(), std::vector<std::string>{"e.down_proj"});
    return error_of([&] { file->tensor("e.down_proj"); });
  };
  EXPECT_EQ(error({2, 3, 1, 16}, {2, 3, 1}, at::kByte), "");
  EXPECT_THAT(error({2, 3, 1, 8}, {2, 3, 1}, at::kByte), Names({"model.safetensors", "e.down_proj", "blocks", 16}));
  EXPECT_THAT(error({2, 3, 1, 16}, {2, 3, 2}, at::kByte), Names({"e.down_proj", "scales"}));
  EXPECT_THAT(error({2, 3, 1, 16}, {2, 3, 1}, at::kChar), Names({"e.down_proj", "U8"}));
}

TEST(GraniteSwa, UnsupportedValues_AreRejected) {
  const auto error = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = {{"model_type", "granite_swa"}, {"vocab_size", 9},          {"hidden_size", 64},
                             {"num_hidden_layers", 3},      {"num_attention_heads", 8}, {"intermediate_size", 96}};
    config[key] = value;
    return error_of([&] { ModelConfig::from_json(config, "config.json"); });
  };
  EXPECT_EQ(error("layer_rope_theta", {1e4, 0, 1e3}), "");
  EXPECT_THAT(error("layer_rope_theta", {1e4, 0}), Names({"layer_rope_theta", "num_hidden_layers"}));
  EXPECT_THAT(error("layer_rope_theta", {1e4, 0, 0.5}), Names({"layer_rope_theta", 1, 0, "0.5"}));
  EXPECT_THAT(error("logits_scaling", 0), Names({"logits_scaling", 0}));
  EXPECT_THAT(error("mlp_bias", true), Names({"mlp_bias"}));
  EXPECT_THAT(error("model_type", "mimo_v2_flash"), Names({"model_type", "granite_swa", "'mimo_v2_flash'"}));
}

TEST(SmolLm3, UnsupportedValues_AreRejected) {
  const auto read = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = {{"model_type", "smollm3"}, {"vocab_size", 9},          {"hidden_size", 64},
                             {"num_hidden_layers", 5},  {"num_attention_heads", 8}, {"intermediate_size", 96}};
    config[key] = value;
    return ModelConfig::from_json(config, "config.json");
  };
  const auto error = [&](const char* key, const nlohmann::json& value) { return error_of([&] { read(key, value); }); };
  EXPECT_EQ(read("use_cache", true).positions.layer_bases, (std::vector<double>{2e6, 2e6, 2e6, 0, 2e6}));
  EXPECT_EQ(read("no_rope_layer_interval", 2).positions.layer_bases, (std::vector<double>{2e6, 0, 2e6, 0, 2e6}));
  EXPECT_EQ(read("no_rope_layers", {0, 1, 1, 1, 1, 0}).positions.layer_bases,
            (std::vector<double>{0, 2e6, 2e6, 2e6, 2e6}));
  EXPECT_EQ(read("use_sliding_window", true).attention.window, -1);
  EXPECT_THAT(error("no_rope_layers", {0, 1}), Names({"no_rope_layers", "num_hidden_layers"}));
  EXPECT_THAT(error("no_rope_layer_interval", 0), Names({"no_rope_layer_interval", 1, 0}));
  EXPECT_THAT(error("layer_types", {"sliding_attention"}), Names({"layer_types", "num_hidden_layers"}));
  EXPECT_THAT(error("mlp_bias", true), Names({"mlp_bias"}));
  EXPECT_THAT(error("hidden_act", "gelu"), Names({"hidden_act", "silu", "gelu"}));
}

TEST(Phi3, UnsupportedValues_AreRejected) {
  const auto read = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = {{"model_type", "phi3"},   {"vocab_size", 9},          {"hidden_size", 64},
                             {"num_hidden_layers", 3}, {"num_attention_heads", 8}, {"intermediate_size", 96}};
    config[key] = value;
    return ModelConfig::from_json(config, "config.json");
  };
  const auto error = [&](const char* key, const nlohmann::json& value) { return error_of([&] { read(key, value); }); };
  EXPECT_EQ(read("use_cache", true).attention.window, -1);
  EXPECT_EQ(read("partial_rotary_factor", 0.25).rotary_dim(), 2);
  EXPECT_EQ(read("rope_parameters", {{"rope_theta", 500}, {"partial_rotary_factor", 0.5}}).rotary_dim(), 4);
  EXPECT_THAT(error("partial_rotary_factor", 0.4), Names({"partial_rotary_factor", 8, 3}));
  EXPECT_THAT(error("rope_scaling", {{"type", "linear"}, {"factor", 2}}),
              Names({"rope_scaling", "rope_type", "default", "longrope", "linear"}));
  EXPECT_THAT(error("sliding_window", 0), Names({"sliding_window", 1, 0}));
  const nlohmann::json own = {{"AutoConfig", "configuration_phi3.Phi3Config"},
                              {"AutoModelForCausalLM", "modeling_phi3.Phi3ForCausalLM"}};
  EXPECT_EQ(read("auto_map", own).family, ModelFamily::phi3) << "copies of transformers' classes are accepted";
  EXPECT_THAT(error("auto_map", {{"AutoModelForCausalLM", "modeling_phi3.OtherForCausalLM"}}),
              Names({"auto_map", "modeling_phi3.OtherForCausalLM"}));
}

TEST(Phi3, LongropeFields_MatchTransformers) {
  using nlohmann::json;
  const json none = json::object();
  const json factors = {{"rope_type", "longrope"}, {"short_factor", {1, 1.5, 1, 1}}, {"long_factor", {2, 2, 4.5, 2}}};
  const auto read = [&](const json& more, const json& top = json::object()) {
    json config = {{"model_type", "phi3"},     {"vocab_size", 9},
                   {"hidden_size", 64},        {"num_hidden_layers", 3},
                   {"num_attention_heads", 8}, {"intermediate_size", 96},
                   {"rope_scaling", factors},  {"max_position_embeddings", 8192}};
    config["rope_scaling"].update(more);
    config.update(top);
    return ModelConfig::from_json(config, "config.json");
  };
  const auto error = [&](const json& more, const json& top = json::object()) {
    return error_of([&] { read(more, top); });
  };
  const ModelConfig c = read(none);
  EXPECT_EQ(c.positions.rope_scaling.original_length, 4096);
  EXPECT_EQ(c.positions.rope_scaling.factor, 2);
  const auto factors_at = [&](int64_t length) { return rope_at(c, length).scaling.pair_factors; };
  EXPECT_EQ(factors_at(4096), (std::vector<double>{1, 1.5, 1, 1}));
  EXPECT_EQ(factors_at(4097), (std::vector<double>{2, 2, 4.5, 2}));
  EXPECT_FALSE(rope_varies(c, 4096));
  EXPECT_TRUE(rope_varies(c, 4097));
  EXPECT_EQ(read({{"rope_type", nullptr}, {"type", "su"}}).to_json(), c.to_json());
  EXPECT_EQ(read({{"rope_type", "yarn"}}).to_json(), c.to_json());
  EXPECT_EQ(read({{"type", "su"}}).to_json(), c.to_json());
  EXPECT_EQ(read({{"original_max_position_embeddings", 5}}).positions.rope_scaling.original_length, 4096);
  EXPECT_EQ(read(none, {{"original_max_position_embeddings", 5}}).positions.rope_scaling.original_length, 5);
  EXPECT_EQ(read(none, {{"max_position_embeddings", 64}}).positions.rope_scaling.factor, 64. / 4096);
  EXPECT_EQ(read({{"short_factor", {1, 1}}, {"long_factor", {1, 1}}}, {{"partial_rotary_factor", 0.5}}).rotary_dim(),
            4);

  for (const std::string field : {"short_factor", "long_factor"}) {
    EXPECT_THAT(error({{field, nullptr}}), Names({"rope_scaling." + field, "nothing"}));
    EXPECT_THAT(error({{field, 2}}), Names({field, "numbers", 2}));
    EXPECT_THAT(error({{field, {1, 1, "1", 1}}}), Names({field, "numbers"}));
    EXPECT_THAT(error({{field, {1, 1, nullptr, 1}}}), Names({field, "numbers"}));
    EXPECT_THAT(error({{field, {1, 1, 1}}}), Names({field, 4, 3}));
    EXPECT_THAT(error({{field, json::array()}}), Names({field, 4, 0}));
    for (const double bad : {0., -1.5, std::numeric_limits<double>::quiet_NaN(), HUGE_VAL})
      EXPECT_THAT(error({{field, {1, bad, 1, 1}}}), Names({field, 0})) << bad;
  }
  EXPECT_THAT(error({{"attention_factor", 0}}), Names({"attention_factor", 0}));
  EXPECT_THAT(error({{"attention_factor", "1"}}), Names({"attention_factor", "number"}));
  EXPECT_THAT(error({{"factor", -1}}), Names({"factor", -1}));
  EXPECT_THAT(error(none, {{"original_max_position_embeddings", 0}}), Names({"original_max_position_embeddings", 0}));
  EXPECT_THAT(error(none, {{"original_max_position_embeddings", 1}}),
              Names({"original_max_position_embeddings", 2, 1}));
}

TEST(Gemma2, Defaults_MatchTransformers) {
  const auto read = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = {{"model_type", "gemma2"}, {"vocab_size", 9},          {"hidden_size", 64},
                             {"num_hidden_layers", 5}, {"num_attention_heads", 8}, {"intermediate_size", 96}};
    config[key] = value;
    return ModelConfig::from_json(config, "config.json");
  };
  const auto error = [&](const char* key, const nlohmann::json& value) { return error_of([&] { read(key, value); }); };
  const ModelConfig c = read("use_cache", true);
  EXPECT_EQ(c.attention.full_layers, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(c.attention.softcap, 50);
  EXPECT_EQ(c.multipliers.logits_softcap, 30);
  EXPECT_EQ(c.score_scale(0), 0.0625);
  EXPECT_EQ(read("attn_logit_softcapping", nullptr).attention.softcap, 0);
  EXPECT_THAT(error("attn_logit_softcapping", -1), Names({"attn_logit_softcapping", 0, -1}));
  EXPECT_THAT(error("use_bidirectional_attention", true), Names({"use_bidirectional_attention", "false", "true"}));
}

TEST(Gemma3, UnsupportedValues_AreRejected) {
  const auto read = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = {{"model_type", "gemma3_text"}, {"vocab_size", 9},          {"hidden_size", 64},
                             {"num_hidden_layers", 7},      {"num_attention_heads", 8}, {"intermediate_size", 96}};
    config[key] = value;
    return ModelConfig::from_json(config, "config.json");
  };
  const auto error = [&](const char* key, const nlohmann::json& value) { return error_of([&] { read(key, value); }); };
  EXPECT_EQ(read("use_cache", true).attention.full_layers, std::vector<int64_t>{5});
  EXPECT_EQ(read("use_cache", true).positions.layer_bases, (std::vector<double>{1e4, 1e4, 1e4, 1e4, 1e4, 1e6, 1e4}));
  EXPECT_EQ(read("sliding_window_pattern", 3).attention.full_layers, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(read("rope_local_base_freq", 500).rope_base_of(0), 500);
  const ModelConfig full = read("layer_types", nlohmann::json(7, "full_attention"));
  EXPECT_EQ(full.attention.window, -1);
  // transformers requires a number, even if no layer has a window
  EXPECT_TRUE(full.to_json()["sliding_window"].is_number());
  EXPECT_THAT(error("sliding_window", nullptr), Names({"sliding_window", "integer", "null"}));
  EXPECT_EQ(read("rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}).positions.rope_scaling.factor, 8);
  EXPECT_THAT(error("sliding_window_pattern", 0), Names({"sliding_window_pattern", 1, 0}));
  EXPECT_THAT(error("rope_parameters", {{"rope_type", "default"}}),
              Names({"rope_parameters", "full_attention", "sliding_attention"}));
  EXPECT_THAT(error("rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2}}}}),
              Names({"rope_type", "sliding_attention", "default", "linear"}));
  EXPECT_THAT(error("attn_logit_softcapping", 50), Names({"attn_logit_softcapping", 50}));
  EXPECT_THAT(error("final_logit_softcapping", 0), Names({"final_logit_softcapping", 0}));
  EXPECT_THAT(error("use_bidirectional_attention", true), Names({"use_bidirectional_attention", "false", "true"}));
  EXPECT_THAT(error("query_pre_attn_scalar", 0), Names({"query_pre_attn_scalar", 0}));
  EXPECT_THAT(error("hidden_activation", "silu"), Names({"hidden_activation", "gelu_pytorch_tanh", "silu"}));
  EXPECT_THAT(error("model_type", "gemma3"), Names({"model_type", "gemma3_text", "'gemma3'"}));
}

TEST(GptOss, UnsupportedValues_AreRejected) {
  const auto error = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = {{"model_type", "gpt_oss"}, {"vocab_size", 9},          {"hidden_size", 64},
                             {"num_hidden_layers", 3},  {"num_attention_heads", 8}, {"intermediate_size", 96},
                             {"num_local_experts", 8}};
    config[key] = value;
    return error_of([&] { ModelConfig::from_json(config, "config.json"); });
  };
  EXPECT_EQ(error("quantization_config", {{"quant_method", "mxfp4"}}), "");
  EXPECT_THAT(error("quantization_config", {{"quant_method", "fp8"}}),
              Names({"quantization_config", "quant_method", "mxfp4", "fp8"}));
  EXPECT_THAT(error("num_experts_per_tok", 9), Names({"num_experts_per_tok", 1, "num_local_experts", 8, 9}));
  EXPECT_THAT(error("num_local_experts", 0), Names({"num_local_experts", 1, 0}));
  EXPECT_THAT(error("swiglu_limit", 0), Names({"swiglu_limit", 0}));
  EXPECT_THAT(error("hidden_act", "gelu"), Names({"hidden_act", "silu", "gelu"}));
}

}  // namespace
}  // namespace lazy
