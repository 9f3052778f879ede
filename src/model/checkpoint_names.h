// Names of a decoder's tensors in our files: Llama's for softmax models of its families, so that every program reads them,
// and FLA's, with the paper authors' two additions, for every other (SPEC section 5).
#pragma once
#include <string>

#include "model/config.h"

namespace lazy {

struct CheckpointNames {
  explicit CheckpointNames(const ModelConfig& config);

  std::string embedding, positions = "model.position_embeddings.weight", layers = "model.layers.", final_norm = "model.norm.weight", head = "lm_head.weight";
  std::string layer(int64_t index) const { return layers + std::to_string(index) + "."; }
  // Within a layer:
  std::string mixer_norm, mlp_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, distance_bias, offset, sink, slopes;
  std::string r_proj, content_bias, position_bias;
  std::string gate = "mlp.gate_proj.weight", up = "mlp.up_proj.weight", down = "mlp.down_proj.weight";
};

}  // namespace lazy
