#include "model/families/families.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/config_json.h"
#include "model/mixers/fla_fields.h"
#include "model/mixers/mamba2.h"

namespace lazy {

using config_json::Fields;
using config_json::json;

namespace {

constexpr int64_t kPilesLength = 2048;  // training length of the published models; their config.json does not state it
constexpr int64_t kPad = 16;            // value of pad_vocab_size_multiple that is written if it divides vocab_size

// Throws an Error if the field `name` is present and not empty. `what` says what the field describes.
void must_be_empty(const Fields& fields, const char* name, const char* what) {
  const json* value = fields.find({name});
  if (value && !value->empty())
    fields.wrong(name, fmt::format("nothing (this decoder does not support {})", what).c_str(), *value);
}

void read_ssm(const Fields& ssm, ModelConfig& m) {
  MixerConfig& x = m.mixer;
  std::string layer = "Mamba1";  // default of the field in the original program
  ssm.string({"layer"}, layer);
  if (layer != "Mamba2") ssm.wrong("ssm_cfg.layer", "Mamba2 (other values are not supported by this decoder)", layer);
  ssm.integer({"d_state"}, x.state_size);
  ssm.integer({"d_conv"}, x.conv_size);
  ssm.integer({"ngroups"}, x.groups);
  const int64_t inner = read_inner_heads(ssm, "headdim", "d_model", m);
  int64_t recurrent = inner;
  ssm.integer({"d_ssm"}, recurrent);
  if (recurrent != inner)
    ssm.wrong("d_ssm", fmt::format("{} (the inner width, expand times d_model)", inner).c_str(), recurrent);
  ssm.must_be_absent("D_has_hdim", "a skip weight D per dimension instead of per head");
  ssm.must_be_absent("norm_before_gate", "a norm before the gate");
  ssm.must_be_absent("bias", "biases in the projections");
  require_true(ssm, "rmsnorm");
  require_true(ssm, "conv_bias");
  ssm.interval("dt_limit", x.step_min, x.step_max);
}

}  // namespace

bool is_native_mamba2(const json& config) { return config.contains("ssm_cfg") && !config.contains("model_type"); }

ModelConfig read_native_mamba2(const json& config, const std::string& file) {
  const Fields fields(config, file);
  ModelConfig m;
  m.family = ModelFamily::state_spaces;
  use_mixer(m, kMamba2);
  m.tie_embeddings = true;
  m.max_length = kPilesLength;
  m.bos_token_id = m.eos_token_id = 0;  // <|endoftext|> of the GPT-NeoX tokenizer that the models use
  fields.required_integer({"vocab_size"}, m.vocab_size);
  int64_t multiple = 1;
  fields.integer({"pad_vocab_size_multiple"}, multiple);
  if (multiple < 1 || multiple > 1 << 16) fields.wrong("pad_vocab_size_multiple", "1 to 65536", multiple);
  if (m.vocab_size > 0 && m.vocab_size < 1 << 24) m.vocab_size = (m.vocab_size + multiple - 1) / multiple * multiple;
  fields.required_integer({"d_model"}, m.hidden_size);
  fields.required_integer({"n_layer"}, m.num_layers);
  fields.must_be("d_intermediate", 0);
  must_be_empty(fields, "attn_layer_idx", "attention layers");
  require_true(fields, "rms_norm");
  fields.boolean({"tie_embeddings"}, m.tie_embeddings);
  const json* ssm = fields.find({"ssm_cfg"});
  if (!ssm || !ssm->is_object()) fields.wrong("ssm_cfg", "an object", ssm ? *ssm : json());
  read_ssm(Fields(*ssm, file), m);
  infer_mixer_sizes(m);
  return m;
}

nlohmann::ordered_json write_native_mamba2(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  nlohmann::ordered_json ssm = {{"layer", "Mamba2"},      {"d_state", x.state_size},
                                {"d_conv", x.conv_size},  {"expand", mamba2_inner(x) / m.hidden_size},
                                {"headdim", x.value_dim}, {"ngroups", x.groups}};
  if (x.step_min > 0 || !std::isinf(x.step_max))
    ssm["dt_limit"] = {x.step_min, std::min(x.step_max, std::numeric_limits<double>::max())};
  return {{"d_model", m.hidden_size},
          {"d_intermediate", 0},
          {"n_layer", m.num_layers},
          {"vocab_size", m.vocab_size},
          {"ssm_cfg", ssm},
          {"attn_layer_idx", nlohmann::ordered_json::array()},
          {"attn_cfg", nlohmann::ordered_json::object()},
          {"rms_norm", true},
          {"residual_in_fp32", true},
          {"fused_add_norm", true},
          {"pad_vocab_size_multiple", m.vocab_size % kPad == 0 ? kPad : 1},
          {"tie_embeddings", m.tie_embeddings}};
}

}  // namespace lazy
