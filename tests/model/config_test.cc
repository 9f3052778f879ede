#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/config.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using nlohmann::json;

ModelConfig toml(const std::string& text) {
  Config config = Config::parse(text, "test.toml");
  const ModelConfig model = ModelConfig::from_toml(config);
  config.check_all_used();
  return model;
}

std::string toml_error(const std::string& text) {
  return error_of([&] { toml(text); });
}

// Formats a parameter count in millions with one decimal, as in the table of the specification.
std::string millions(int64_t n) { return fmt::format("{:.1f}", static_cast<double>(n) / 1e6); }

struct Row {
  const char* file;
  const char* tied;
  const char* untied;
};

TEST(ModelConfig, ShippedConfigs_HaveSpecifiedParameterCounts) {
  for (const Row& row : {Row{"transformer-340m", "341.1", "373.9"}, Row{"lazy-340m", "341.3", "374.1"},
                         Row{"transformer-760m", "728.7", "777.9"}}) {
    Config config = Config::load(fmt::format("{}/configs/models/{}.toml", LAZY_SOURCE_DIR, row.file));
    const ModelConfig model = ModelConfig::from_toml(config);
    config.check_all_used();
    const ParameterCount count = count_parameters(model);
    EXPECT_EQ(millions(count.tied), row.tied) << row.file;
    EXPECT_EQ(millions(count.untied), row.untied) << row.file;
    EXPECT_EQ(count.total, count.untied) << row.file;
  }
  // Compared with transformer-760m, lazy-760m has one more offset and 512 more distance biases in each of 24 x 16
  // heads.
  Config lazy = Config::load(LAZY_SOURCE_DIR "/configs/models/lazy-760m.toml");
  Config twin = Config::load(LAZY_SOURCE_DIR "/configs/models/transformer-760m.toml");
  EXPECT_EQ(
      count_parameters(ModelConfig::from_toml(lazy)).untied - count_parameters(ModelConfig::from_toml(twin)).untied,
      24 * 16 * 513);
}

TEST(ModelConfig, Kind_SetsDefaults) {
  const ModelConfig lazy = toml("[model]\nkind = \"lazy\"");
  EXPECT_TRUE(lazy.is_lazy());
  EXPECT_EQ(lazy.attention.distance_bias_window, 512);
  EXPECT_EQ(lazy.positions.rope_base, 1.5e5);
  EXPECT_EQ(lazy.attention.offset_init, -1);
  EXPECT_EQ(lazy.mlp.intermediate_size, 2816);
  const ModelConfig plain = toml("[model]\nkind = \"transformer\"");
  EXPECT_TRUE(plain.is_plain_llama());
  EXPECT_EQ(plain.positions.rope_base, 1e4);
  EXPECT_EQ(plain.attention.head_dim, 64);
  EXPECT_EQ(toml("[model]\nkind = \"transformer\"\nnum_heads = 8").attention.num_kv_heads, 8);
  EXPECT_EQ(toml("[model]\nkind = \"transformer\"\nnum_heads = 8").attention.head_dim, 128);
  EXPECT_EQ(toml("[model]\nvocab_size = 0").vocab_size, 0);
}

TEST(ModelConfig, TomlErrors_NameField) {
  EXPECT_THAT(toml_error("[model]\nhiden_size = 4"), Names({"test.toml:2", "hiden_size", "hidden_size"}));
  // The message contains 'lazy' in quotes only as a suggestion. In the list of all kinds, names have no quotes.
  EXPECT_THAT(toml_error("[model]\nkind = \"lazzy\""), Names({"test.toml:2", "model.kind", "'lazzy'", "'lazy'"}));
  EXPECT_THAT(toml_error("[model]\nnum_heads = 7"), Names({"test.toml:2", "num_heads", 1024, 7}));
  EXPECT_THAT(toml_error("[model]\nnum_kv_heads = 5"), Names({"test.toml", "num_kv_heads", 16, 5}));
  EXPECT_THAT(toml_error("[model]\nhead_dim = 33"), Names({"test.toml", "head_dim", 33}));
  EXPECT_THAT(toml_error("[model]\nnorm_eps = 0"), Names({"norm_eps", 0}));
  EXPECT_THAT(toml_error("[model]\nrope_theta = nan"), Names({"rope_theta", "nan"}));
  EXPECT_THAT(toml_error("[model]\nhidden_ratio = 1e30"), Names({"hidden_ratio", "1e+30"}));
  // This ratio gives an MLP width of 0. It is rejected, because a 0 in config.json would mean "not given".
  EXPECT_THAT(toml_error("[model]\nhidden_ratio = 1e-4"), Names({"hidden_ratio", 1, 0}));
  EXPECT_THAT(toml_error("[model]\nwindow_size = 0"), Names({"window_size", -1, 1, 0}));
  EXPECT_THAT(toml_error("[model]\nhidden_size = \"big\""),
              Names({"test.toml:2", "model.hidden_size", "integer", "big"}));
  ModelConfig none;
  none.vocab_size = 0;
  EXPECT_THAT(error_of([&] { none.validate(); }), Names({"vocab_size", 1, 0}));
}

TEST(ModelConfig, Json_RoundTrips) {
  ModelConfig lazy = toml(
      "[model]\nkind = \"lazy\"\nnum_kv_heads = 4\nhead_dim = 32\nwindow_size = 64\noffset = \"constant\"\n"
      "offset_trainable = false\ntie_word_embeddings = true\ndistance_bias_window = 100\neos_token_id = -1");
  lazy.tokenizer_fingerprint = 0xfedcba9876543210;
  for (const ModelConfig& model : {lazy, toml("[model]\nkind = \"transformer\"\nrope_theta = 5e5")}) {
    const auto out = model.to_json();
    const ModelConfig back = ModelConfig::from_json(json::parse(out.dump()), "config.json");
    EXPECT_EQ(back.to_json(), out);
    EXPECT_EQ(back.tokenizer_fingerprint, model.tokenizer_fingerprint);
    EXPECT_EQ(back.eos_token_id, model.eos_token_id);
  }
  EXPECT_EQ(lazy.to_json()["model_type"], "lazy_attention");
  EXPECT_EQ(lazy.to_json()["architectures"][0], "LazyForCausalLM");
}

json llama() {
  return {{"model_type", "llama"},    {"vocab_size", 100},        {"hidden_size", 64},   {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"intermediate_size", 128}, {"rms_norm_eps", 1e-5}};
}

TEST(ModelConfig, Rope_IsReadFromBothTransformersFormats) {
  json old = llama();
  old["rope_theta"] = 5e5;
  old["rope_scaling"] = nullptr;
  json fresh = llama();
  fresh["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  for (const json& j : {old, fresh}) {
    const ModelConfig model = ModelConfig::from_json(j, "config.json");
    EXPECT_EQ(model.positions.rope_base, 5e5);
    EXPECT_EQ(model.norm.eps, 1e-5);
    EXPECT_EQ(model.attention.head_dim, 16);
    EXPECT_EQ(model.attention.num_kv_heads, 4);
  }
}

TEST(ModelConfig, Families_HaveTransformersDefaultsAndWindows) {
  const auto read = [](const char* type, const json& more) {
    json j = llama();
    j["model_type"] = type;
    j.update(more);
    return ModelConfig::from_json(j, "config.json");
  };
  // If config.json does not contain a key, the default of transformers' configuration class is used.
  EXPECT_EQ(read("mistral", {{"num_attention_heads", 16}}).attention.num_kv_heads, 8);
  EXPECT_EQ(read("mistral", {{"num_key_value_heads", nullptr}}).attention.num_kv_heads, 4);
  EXPECT_EQ(read("mistral", {{"num_key_value_heads", 2}}).attention.window, 4096);
  EXPECT_EQ(read("mistral", {{"num_key_value_heads", 2}, {"sliding_window", nullptr}}).attention.window, -1);
  EXPECT_EQ(read("mistral", {{"num_key_value_heads", 2}}).max_length, 131072);
  EXPECT_EQ(read("qwen3", {{"num_key_value_heads", 2}}).attention.head_dim, 128);
  EXPECT_EQ(read("qwen2", {{"num_key_value_heads", 2}}).attention.head_dim, 16);
  EXPECT_EQ(read("qwen2", {{"num_key_value_heads", 2}}).max_length, 32768);
  // Qwen's window is used only with use_sliding_window. max_window_layers or layer_types then selects its layers.
  const json qwen = {{"num_key_value_heads", 2}, {"num_hidden_layers", 3}, {"sliding_window", 8}};
  const auto windows = [&](json more) {
    more.update(qwen);
    const ModelConfig m = read("qwen2", more);
    return std::vector<int64_t>{m.window_of(0), m.window_of(1), m.window_of(2)};
  };
  EXPECT_EQ(windows({}), (std::vector<int64_t>{-1, -1, -1}));
  // max_window_layers defaults to 28, so no layer has a window.
  EXPECT_EQ(windows({{"use_sliding_window", true}}), (std::vector<int64_t>{-1, -1, -1}));
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"max_window_layers", 1}}), (std::vector<int64_t>{-1, 8, 8}));
  const json types = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"layer_types", types}}), (std::vector<int64_t>{8, -1, 8}));
  EXPECT_THAT(error_of([&] {
                windows({{"layer_types", types}});
              }),
              Names({"layer_types", "sliding_attention", "sliding_window"}));
  EXPECT_THAT(error_of([&] {
                windows({{"layer_types", json::array({"full_attention"})}});
              }),
              Names({"layer_types", "num_hidden_layers"}));
  EXPECT_THAT(error_of([&] {
                windows({{"layer_types", {"full_attention", "chunked_attention", "full_attention"}}});
              }),
              Names({"layer_types", "chunked_attention"}));
}

TEST(ModelConfig, UnsupportedByTransformers_IsSavedAsLazyModel) {
  ModelConfig m = toml("[model]\nkind = \"transformer\"\nwindow_size = 5");
  EXPECT_EQ(m.architecture(), "LazyForCausalLM");
  m.family = ModelFamily::mistral;
  EXPECT_EQ(m.architecture(), "MistralForCausalLM");
  m.attention.qk_norm = true;
  EXPECT_THAT(error_of([&] { m.validate(); }), Names({"qk_norm", "mistral"}));
  m.family = ModelFamily::qwen3;
  m.validate();
}

TEST(ModelConfig, JsonErrors_NameField) {
  const auto error = [](const char* key, const json& value) {
    json j = llama();
    j[key] = value;
    return error_of([&] { ModelConfig::from_json(j, "dir/config.json"); });
  };
  EXPECT_THAT(error("model_type", "gpt_neox"), Names({"dir/config.json", "model_type", "gpt_neox"}));
  EXPECT_THAT(error("hidden_size", "64"),
              IsMessage("config.json: dir/config.json: hidden_size: expected an integer, found \"64\""));
  EXPECT_THAT(error("hidden_size", -64), Names({"hidden_size", 1, -64}));
  EXPECT_THAT(error("hidden_size", 1.5), Names({"hidden_size", "integer", "1.5"}));
  EXPECT_THAT(error("vocab_size", 18446744073709551615u), Names({"vocab_size", "integer", "18446744073709551615"}));
  EXPECT_THAT(error("num_hidden_layers", 1 << 30), Names({"num_hidden_layers", 1, 1 << 30}));
  EXPECT_THAT(error("num_attention_heads", 0), Names({"num_attention_heads", "hidden_size", 64, 0}));
  EXPECT_THAT(error("num_key_value_heads", 3), Names({"num_kv_heads", "num_heads", 4, 3}));
  EXPECT_THAT(error("tie_word_embeddings", 1), Names({"tie_word_embeddings", 1}));
  EXPECT_THAT(error("hidden_act", "gelu"), Names({"hidden_act", "silu", "gelu"}));
  EXPECT_THAT(error("attention_bias", 1), Names({"attention_bias", 1}));
  EXPECT_THAT(
      error("mlp_bias", true),
      IsMessage("config.json: dir/config.json: mlp_bias: expected false (this decoder does not support biases in the "
                "MLP), found true"));
  EXPECT_THAT(error("is_causal", false), Names({"is_causal", "true", "false"}));
  // transformers treats null as false, so null is rejected like false
  EXPECT_THAT(error("is_causal", nullptr), Names({"is_causal", "true", "null"}));
  EXPECT_THAT(error("per_layer_config", {{"0", {{"head_dim", 8}}}}), Names({"per_layer_config", "head_dim"}));
  EXPECT_THAT(error("transformers_weights", "other.safetensors"), Names({"transformers_weights", "other.safetensors"}));
  EXPECT_THAT(error("auto_map", {{"AutoModelForCausalLM", "modeling.Model"}}), Names({"auto_map", "modeling.Model"}));
  EXPECT_THAT(error("quantization_config", {{"bits", 4}}), Names({"quantization_config"}));
  EXPECT_THAT(error("model_type", "mixtral"),
              Names({"llama", "mistral", "qwen2", "qwen3", "lazy_attention", "'mixtral'"}));
  EXPECT_THAT(error("partial_rotary_factor", 0.5), Names({"partial_rotary_factor", 1, "0.5"}));
  EXPECT_THAT(error("rope_parameters", 4), Names({"rope_parameters", 4}));
  EXPECT_THAT(error("tokenizer_fingerprint", "xyz"), Names({"tokenizer_fingerprint", "xyz"}));
  const auto rope = [&](const json& value) { return error("rope_scaling", value); };
  EXPECT_THAT(rope({{"rope_type", "ntk"}, {"factor", 2}}), Names({"rope_scaling.rope_type", "longrope", "ntk"}));
  EXPECT_THAT(rope({{"rope_type", "longrope"}, {"factor", 2}}), Names({"rope_scaling.short_factor", "nothing"}));
  EXPECT_THAT(rope({{"type", "linear"}}), Names({"rope_scaling.factor", "number"}));
  EXPECT_THAT(rope({{"type", "linear"}, {"factor", 0.5}}), Names({"rope_scaling.factor", 1, "0.5"}));
  EXPECT_THAT(rope({{"type", "linear"}, {"factor", "2"}}), Names({"factor", "number", "\"2\""}));
  EXPECT_THAT(rope({{"type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0}}),
              Names({"rope_scaling.original_max_position_embeddings", 1, 0}));
  EXPECT_THAT(rope({{"type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}}),
              Names({"rope_scaling.beta_fast", "beta_slow", 1, "0.5"}));
  EXPECT_THAT(rope({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
              Names({"rope_scaling.high_freq_factor", "low_freq_factor", 4}));
  EXPECT_THAT(error("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}),
              Names({"rope_parameters.full_attention"}));
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "model_type"}) {
    EXPECT_THAT(error(key, nullptr), Names({std::string(key)})) << key;
  }
  EXPECT_THAT(error_of([] { ModelConfig::from_json(json::array(), "dir/list.json"); }),
              Names({"dir/list.json", "JSON"}));
  const testing::TemporaryFolder folder;
  const std::string path = (folder / "config.json").string();
  EXPECT_THAT(error_of([&] { ModelConfig::from_directory(folder.path()); }), Names({path}));
  testing::write_text(path, "{\"model_type\":");
  EXPECT_THAT(error_of([&] { ModelConfig::from_directory(folder.path()); }), Names({path, "JSON"}));
  testing::write_text(path, R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 1, "intermediate_size": 8, "rms_norm_eps": 1e999})");
  EXPECT_THAT(error_of([&] { ModelConfig::from_directory(folder.path()); }), Names({path, "rms_norm_eps", "Infinity"}));
  testing::write_text(path, R"({"model_type": "mamba2", "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 1,
    "time_step_limit": [0.1, 0.01]})");
  EXPECT_THAT(error_of([&] { ModelConfig::from_directory(folder.path()); }), Names({path, "time_step_limit", "0.01"}));
}

TEST(ModelConfig, KeysWithoutEffect_AreAccepted) {
  json j = llama();
  const auto expected = ModelConfig::from_json(j, "config.json").to_json();
  j.update({{"is_causal", true},
            {"per_layer_config", json::object()},
            {"pruned_heads", json::object()},
            {"transformers_weights", "model.safetensors"},
            {"quantization_config", nullptr},
            {"auto_map", {{"AutoTokenizer", {"tokenization.Tokenizer", nullptr}}}},
            {"norm_eps", 0.1},  // in the llama family, transformers ignores this name
            {"num_kv_heads", 2},
            {"apply_residual_connection_post_layernorm", true}});
  EXPECT_EQ(ModelConfig::from_json(j, "config.json").to_json(), expected);
}

TEST(ModelConfig, TwoNamesOfOneField_MustAgree) {
  const auto read = [](const json& more) {
    json j = {{"model_type", "gpt2"}, {"vocab_size", 61}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}};
    j.update(more);
    return ModelConfig::from_json(j, "config.json");
  };
  EXPECT_EQ(read({{"num_attention_heads", 4}}).attention.num_heads, 4);
  EXPECT_THAT(error_of([&] { read({{"num_attention_heads", 8}}); }), Names({"num_attention_heads", "n_head", 4, 8}));
}

TEST(ModelConfig, RopeNullAndZero_MatchTransformers) {
  const auto read = [](const json& more) {
    json j = llama();
    json rope = {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 2}};
    rope.update(more);
    j["rope_parameters"] = rope;
    return ModelConfig::from_json(j, "config.json").positions.rope_scaling;
  };
  EXPECT_TRUE(read(json::object()).truncate);
  EXPECT_FALSE(read({{"truncate", nullptr}}).truncate);
  EXPECT_EQ(read(json::object()).original_length, 2048);  // default of max_position_embeddings in LlamaConfig
  EXPECT_THAT(error_of([&] { read({{"attention_factor", 0}}); }), Names({"attention_factor", 0}));
  EXPECT_THAT(error_of([&] { read({{"rope_theta", nullptr}}); }), Names({"rope_theta", "null"}));
  const json lazy = {{"model_type", "lazy_attention"},
                     {"vocab_size", 61},
                     {"hidden_size", 32},
                     {"num_hidden_layers", 2},
                     {"num_attention_heads", 4}};
  EXPECT_EQ(ModelConfig::from_json(lazy, "config.json").positions.rope_base, 1.5e5);
}

TEST(ModelConfig, MistralWindow_AppliesToEveryLayer) {
  const auto read = [](const json& more) {
    json j = llama();
    j.update({{"model_type", "mistral"}, {"num_key_value_heads", 2}, {"sliding_window", 8}});
    j.update(more);
    return ModelConfig::from_json(j, "config.json").attention.window;
  };
  EXPECT_EQ(read({{"layer_types", {"sliding_attention", "sliding_attention"}}}), 8);
  EXPECT_THAT(error_of([&] {
                read({{"layer_types", {"sliding_attention", "full_attention"}}});
              }),
              Names({"layer_types", "sliding_attention", "full_attention"}));
  EXPECT_THAT(error_of([&] { read({{"sliding_window", -1}}); }), Names({"sliding_window", 1, -1}));
}

// The defaults must be the same as in python/lazy_attention/hf/families.py.
TEST(ModelConfig, ConvertedModel_DefaultsToZeroOffsetAndBias) {
  json j = json::parse(R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
                           "num_attention_heads": 2, "intermediate_size": 48})");
  const ModelConfig softmax = ModelConfig::from_json(j, "config.json");
  j["model_type"] = "lazy_llama";
  const ModelConfig plain = ModelConfig::from_json(j, "config.json");
  EXPECT_EQ(plain.to_json(), [&] {
    ModelConfig expected = to_lazy(softmax, 0);
    expected.attention.distance_bias_init_std = 0;
    return expected.to_json();
  }());
  EXPECT_EQ(plain.attention.distance_bias_window, 0);
  EXPECT_EQ(plain.attention.offset_init, 0);
  j["distance_bias_window"] = 8;
  EXPECT_EQ(ModelConfig::from_json(j, "config.json").attention.distance_bias_window, 8);
  for (const auto& [key, value] : {std::pair<const char*, json>{"normalizer", "softmax"},
                                   {"model_type", "lazy_gpt2"},
                                   {"distance_bias_window", -1},
                                   {"offset_init", "0"}}) {
    json wrong = j;
    wrong[key] = value;
    EXPECT_THAT(error_of([&] { ModelConfig::from_json(wrong, "dir/config.json"); }), Names({"dir/config.json"})) << key;
  }
}

TEST(ModelConfig, ConversionWithoutAttention_IsRejected) {
  for (const char* kind : {"retnet", "mamba2"}) {
    const ModelConfig model = toml(fmt::format("[model]\nkind = \"{}\"\nvocab_size = 64\nhidden_size = 64\n", kind));
    EXPECT_THAT(error_of([&] { to_lazy(model, 16); }), Names({std::string(kind)}));
  }
}

TEST(ModelConfig, Adapters_AreRejected) {
  const testing::TemporaryFolder folder;
  testing::write_text(folder / "config.json", llama().dump());
  EXPECT_EQ(error_of([&] { ModelConfig::from_directory(folder.path()); }), "");
  testing::write_text(folder / "adapter_config.json", "{}");
  EXPECT_THAT(error_of([&] { ModelConfig::from_directory(folder.path()); }),
              Names({"adapter_config.json", "adapters"}));
}

TEST(ModelConfig, PythonJson_IsRead) {
  const testing::TemporaryFolder folder;
  const std::string path = (folder / "config.json").string();
  const auto limits = [&](const std::string& limit) {
    testing::write_text(path,
                        R"({"model_type": "mamba2", "vocab_size": 10, "hidden_size": 64, "num_heads": 4, "head_dim": 32,
      "state_size": 24, "num_hidden_layers": 1, "mean": NaN, "time_step_limit": )" +
                            limit + "}");
    const MixerConfig mixer = ModelConfig::from_directory(folder.path()).mixer;
    return std::pair(mixer.step_min, mixer.step_max);
  };
  EXPECT_EQ(limits("[0.0, Infinity]"), std::pair(0.0, std::numeric_limits<double>::infinity()));
  EXPECT_EQ(limits(R"([0.0, {"__float__": "Infinity"}])"), std::pair(0.0, std::numeric_limits<double>::infinity()));
  EXPECT_EQ(limits("[0.01, 0.1]"), std::pair(0.01, 0.1));
}

}  // namespace
}  // namespace lazy
