#include "model/checkpoint_names.h"

namespace lazy {

CheckpointNames::CheckpointNames(const ModelConfig& config) {
  const bool llama = config.is_plain_llama();
  const std::string attention = llama ? "self_attn." : "attn.";
  embedding = llama ? "model.embed_tokens.weight" : "model.embeddings.weight";
  attention_norm = llama ? "input_layernorm.weight" : "attn_norm.weight";
  mlp_norm = llama ? "post_attention_layernorm.weight" : "mlp_norm.weight";
  q = attention + "q_proj.weight";
  k = attention + "k_proj.weight";
  v = attention + "v_proj.weight";
  o = attention + "o_proj.weight";
  distance_bias = attention + "learnable_bias_diagonals";
  offset = attention + "softmax_offset";
}

}  // namespace lazy
