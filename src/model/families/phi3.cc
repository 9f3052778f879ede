#include "model/config_json.h"
#include "model/families/families.h"
#include "model/parameters.h"

namespace lazy {
namespace {

using config_json::Fields;

void phi3_defaults(ModelConfig& m) {
  m.family = ModelFamily::phi3;
  m.norm.eps = 1e-5;
}

void read_phi3(const Fields& fields, ModelConfig& m) {
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  config_json::read_grouped_heads(fields, 0, m);
  fields.required_integer({"intermediate_size"}, m.mlp.intermediate_size);
  fields.number({"rms_norm_eps"}, m.norm.eps);
  m.max_length = 4096;
  fields.integer({"max_position_embeddings"}, m.max_length);
  m.eos_token_id = 32000;  // the default value; the caller then reads the id from config.json
  config_json::read_rope(fields, m);
  config_json::read_window(fields, "phi3", m);
  config_json::require_silu(fields);
}

void write_phi3(const ModelConfig& m, nlohmann::ordered_json& out) {
  config_json::write_sizes(m, out);
  out["partial_rotary_factor"] = m.positions.partial_rotary_factor;
  out["pad_token_id"] = nullptr;  // without this null, transformers uses a default id, which may exceed vocab_size
  config_json::write_rope(m, out);
  config_json::write_window(m, out);
}

void check_phi3(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::rms && !m.norm.post_norm && !m.norm.branch_norm && m.norm.final_norm &&
                    m.mlp.kind == MlpKind::swiglu && !m.mlp.bias && m.rotates() && !m.positions.rope_interleaved &&
                    m.positions.layer_bases.empty() && !m.attention.qk_norm && !m.attention.qkv_bias &&
                    !m.attention.output_bias && m.attention.full_layers.empty() &&
                    m.attention.normalizer == Normalizer::softmax && m.attention.scale_scores &&
                    !m.attention.scale_by_layer && m.attention.distance_bias_window == 0;
  if (!fits)
    fail("model",
         "phi3: expected Phi-3's architecture, with RoPE, softmax and no biases, found positions {} and normalizer {}",
         name(m.positions.kind), name(m.attention.normalizer));
}

// The tensors of a Phi-3 checkpoint. It stores the concatenation of q_proj, k_proj and v_proj as qkv_proj, and the
// concatenation of gate_proj and up_proj as gate_up_proj.
std::vector<StoredTensor> phi3_tensors(const ModelConfig& m) {
  const CheckpointNames names(m);
  std::vector<StoredTensor> out;
  for (StoredTensor& stored : plain_tensors(m)) {
    const bool first = stored.name.ends_with(names.q) || stored.name.ends_with(names.gate);
    const bool joined =
        stored.name.ends_with(names.k) || stored.name.ends_with(names.v) || stored.name.ends_with(names.up);
    if (first) {
      const bool queries = stored.name.ends_with(names.q);
      const std::string& part = queries ? names.q : names.gate;
      stored.name.replace(stored.name.size() - part.size(), part.size(),
                          queries ? "self_attn.qkv_proj.weight" : "mlp.gate_up_proj.weight");
      stored.interleaving = Interleaving::by_head;
      stored.heads = 1;
      stored.rows = {stored.shape[0]};
    }
    if (joined) {
      StoredTensor& fused = out.back();
      fused.shape[0] += stored.shape[0];
      fused.rows.push_back(stored.shape[0]);
      fused.parts.push_back(stored.parts.front());
    } else {
      out.push_back(std::move(stored));
    }
  }
  return out;
}

}  // namespace

const Family kPhi3 = {ModelFamily::phi3, "Phi3ForCausalLM", {},         phi3_defaults,
                      read_phi3,         write_phi3,        check_phi3, phi3_tensors};

}  // namespace lazy
