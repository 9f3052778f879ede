#include "model/config_fixed_keys.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/families.h"

namespace lazy::config_json {
namespace {

struct FixedKey {
  const char* name;
  json only;           // the supported value; an absent key has the same effect as this value
  const char* others;  // what the other values mean, as the object of "this decoder does not support"
  std::vector<std::string_view> types{};  // the key is checked only for these values of model_type; empty: for all
  bool null_is_absent = true;             // false: transformers treats null as false
  const char* only_with = nullptr;        // the key is checked only if config.json also contains this key
};

// To support a key, remove it from this list and read it in the reader of its family. tests/python/test_config_keys.py
// compares the accepted values with transformers.
const std::vector<FixedKey>& fixed_keys() {
  static const std::vector<FixedKey> all = {
      {"is_causal", true, "attention to later tokens", {}, false},
      {"per_layer_config", json::object(), "different configurations per layer"},
      {"pruned_heads", json::object(), "pruned heads"},
      {"compression_config", json(), "quantized weights"},
      {"transformers_weights", "model.safetensors", "other names of the weights file"},
      {"add_cross_attention", false, "layers that attend to an encoder", {"gpt2"}},
      {"mlp_bias", false, "biases in the MLP", {"llama", "granite_swa", "smollm3", "lazy_attention"}},
      {"attention_bias", false, "biases in the attention projections", {"lazy_attention"}},
      {"apply_residual_connection_post_layernorm", false, "residual connections after the norm", {"bloom"}},
      {"use_bidirectional_attention", false, "attention to later tokens", {"gemma2", "gemma3_text"}},
      // transformers 5 reads this key for Gemma 3 without applying it, but other programs cap the scores.
      {"attn_logit_softcapping", json(), "soft-capped attention scores", {"gemma3_text"}},
      {"use_bias", false, "biases in the projections", {"mamba2"}},
      {"D_has_hdim", false, "a skip weight D per dimension instead of per head", {"mamba2"}},
      {"norm_before_gate", false, "a norm before the gate", {"mamba2"}},
      {"use_conv_bias", true, "convolutions without a bias", {"mamba2"}},
      {"rmsnorm", true, "layers without a gated norm", {"mamba2"}},
      // If this key is true, transformers 5 also divides loaded weights, not only initial weights. In
      // flash-linear-attention, the key affects only initial weights. A config.json of flash-linear-attention has
      // norm_eps instead of layer_norm_epsilon, so the key is not checked there.
      {"rescale_prenorm_residual", false, "rescaled output projections", {"mamba2"}, true, "layer_norm_epsilon"},
  };
  return all;
}

constexpr std::string_view kTransformersTypes[] = {"llama", "mistral", "qwen2",       "qwen3",   "gpt2",
                                                   "bloom", "gpt_oss", "granite_swa", "smollm3", "olmo2",
                                                   "phi3",  "gemma2",  "gemma3_text", "mamba2"};

}  // namespace

void check_custom_code(const Fields& fields, const std::string& type) {
  const json* code = fields.find({"auto_map"});
  const bool known =
      std::find(std::begin(kTransformersTypes), std::end(kTransformersTypes), type) != std::end(kTransformersTypes);
  const bool gated = fields.has("headwise_attn_output_gate") || fields.has("elementwise_attn_output_gate");
  if (!code || !code->is_object() || !known || (type == "qwen3" && gated)) return;
  // Released Phi-3 models contain copies of the classes of transformers, and transformers uses its own classes instead
  // of them. auto_map is therefore accepted if it only names such copies.
  const Family* family = find_family(type);
  const std::string architecture = family ? family->architecture : "", causal = "ForCausalLM";
  const std::string configuration =
      architecture.ends_with(causal) ? architecture.substr(0, architecture.size() - causal.size()) + "Config" : "";
  const auto is_copy = [&](const std::string& name, const json& file) {
    const std::string& own = name == "AutoConfig" ? configuration : architecture;
    return !own.empty() && file.is_string() && file.get<std::string>().ends_with("." + own);
  };
  for (const auto& [name, file] : code->items()) {
    if ((name == "AutoConfig" || name.starts_with("AutoModel")) && !is_copy(name, file))
      fields.wrong("auto_map", "none (this program never runs code from a model folder)", *code);
  }
}

void check_fixed_keys(const Fields& fields, const std::string& type) {
  for (const FixedKey& key : fixed_keys()) {
    if (!key.types.empty() && std::find(key.types.begin(), key.types.end(), type) == key.types.end()) continue;
    if (key.only_with && !fields.find({key.only_with})) continue;
    const json* found = fields.find({key.name});
    if (!found && (key.null_is_absent || !fields.has(key.name))) continue;
    const json null;
    const json& value = found ? *found : null;
    if (value == key.only || (key.only.is_object() && value.empty())) continue;
    const std::string only = key.only.is_null() ? "none" : key.only.dump();
    fields.wrong(key.name, fmt::format("{} (this decoder does not support {})", only, key.others).c_str(), value);
  }
}

}  // namespace lazy::config_json
