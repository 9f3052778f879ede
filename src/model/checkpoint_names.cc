#include "model/checkpoint_names.h"

#include "model/families/mamba2_native.h"

namespace lazy {

CheckpointNames::CheckpointNames(const ModelConfig& config) {
  const bool llama = config.all_attention() && config.architecture() != "LazyForCausalLM";
  const std::string attention = llama ? "self_attn." : "attn.";
  embedding = llama ? "model.embed_tokens.weight" : "model.embeddings.weight";
  mixer_norm = llama ? "input_layernorm.weight" : "attn_norm.weight";
  mlp_norm = llama ? "post_attention_layernorm.weight" : "mlp_norm.weight";
  q = attention + "q_proj.weight";
  k = attention + "k_proj.weight";
  v = attention + "v_proj.weight";
  o = attention + "o_proj.weight";
  q_bias = attention + "q_proj.bias";
  k_bias = attention + "k_proj.bias";
  v_bias = attention + "v_proj.bias";
  o_bias = attention + "o_proj.bias";
  q_norm = attention + "q_norm.weight";
  k_norm = attention + "k_norm.weight";
  distance_bias = attention + "learnable_bias_diagonals";
  offset = attention + "softmax_offset";
  sink = attention + "sinks";
  slopes = attention + "alibi_slopes";
  r_proj = attention + "r_proj.weight";  // the three as Transformer-XL's own program abbreviates them
  content_bias = attention + "r_w_bias";
  position_bias = attention + "r_r_bias";
  if (config.mixer.type == MixerType::ttt_linear || config.mixer.type == MixerType::ttt_mlp) {  // ttt-lm-pytorch
    embedding = "model.embed_tokens.weight";
    mixer_norm = "seq_norm.weight";
    mlp_norm = "ffn_norm.weight";
  }
  if (config.mixer.type == MixerType::mamba2) {
    embedding = config.family == ModelFamily::state_spaces ? "backbone.embedding.weight" : "backbone.embeddings.weight";
    layers = "backbone.layers.";
    mixer_norm = "norm.weight";
    final_norm = "backbone.norm_f.weight";
  }
}

}  // namespace lazy
