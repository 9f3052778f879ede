// Names of a decoder's tensors, and those of our files: Llama's for softmax models of its families, so that every
// program reads them, and FLA's, with the paper authors' two additions, for every other (SPEC section 5). The families
// of model/families/ have Llama's names here and their own on disk.
#pragma once
#include <string>

#include "model/config.h"

namespace lazy {

struct CheckpointNames {
  explicit CheckpointNames(const ModelConfig& config);

  std::string embedding,
      embedding_norm = "model.embed_layernorm.weight", embedding_norm_bias = "model.embed_layernorm.bias",
      positions = "model.position_embeddings.weight", layers = "model.layers.", final_norm = "model.norm.weight",
      final_norm_bias = "model.norm.bias", head = "lm_head.weight";
  std::string layer(int64_t index) const { return layers + std::to_string(index) + "."; }
  // Within a layer:
  std::string mixer_norm, mlp_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, distance_bias, offset,
      sink, slopes;
  std::string mixer_norm_bias = "input_layernorm.bias", mlp_norm_bias = "post_attention_layernorm.bias";
  std::string r_proj, content_bias, position_bias;
  std::string gate = "mlp.gate_proj.weight", up = "mlp.up_proj.weight", down = "mlp.down_proj.weight";
  std::string up_bias = "mlp.up_proj.bias", down_bias = "mlp.down_proj.bias";
  std::string router = "mlp.router.weight", router_bias = "mlp.router.bias";
  std::string experts_gate_up = "mlp.experts.gate_up_proj", experts_gate_up_bias = "mlp.experts.gate_up_proj_bias",
              experts_down = "mlp.experts.down_proj", experts_down_bias = "mlp.experts.down_proj_bias";
};

}  // namespace lazy
