// Names and shapes of a decoder's parameters, available without constructing the decoder.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

struct CheckpointNames {
  explicit CheckpointNames(const ModelConfig& config);

  std::string embedding,
      embedding_norm = "model.embed_layernorm.weight", embedding_norm_bias = "model.embed_layernorm.bias",
      positions = "model.position_embeddings.weight", layers = "model.layers.", final_norm = "model.norm.weight",
      final_norm_bias = "model.norm.bias", head = "lm_head.weight";
  std::string layer(int64_t index) const { return layers + std::to_string(index) + "."; }
  // The names from here on are relative to a layer.
  std::string mixer_norm, mlp_norm, mixer_output_norm, mlp_output_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias,
      q_norm, k_norm, distance_bias, offset, sink, slopes, output_gate;
  std::string mixer_norm_bias = "input_layernorm.bias", mlp_norm_bias = "post_attention_layernorm.bias";
  std::string r_proj, content_bias, position_bias;
  std::string gate = "mlp.gate_proj.weight", up = "mlp.up_proj.weight", down = "mlp.down_proj.weight";
  std::string up_bias = "mlp.up_proj.bias", down_bias = "mlp.down_proj.bias";
  std::string router = "mlp.router.weight", router_bias = "mlp.router.bias";
  std::string experts_gate_up = "mlp.experts.gate_up_proj", experts_gate_up_bias = "mlp.experts.gate_up_proj_bias",
              experts_down = "mlp.experts.down_proj", experts_down_bias = "mlp.experts.down_proj_bias";
};

struct ParameterShape {
  std::string name;  // as in the checkpoint
  std::vector<int64_t> shape;
  bool trained = true;  // false: stored but not trained, for example a fixed offset
  // Saved in fp32 even in a bf16 model. Offsets and distance biases decide which attention weights are nonzero, and the
  // decay of a recurrence is raised to a power of up to the sequence length, which amplifies rounding errors.
  bool keep_fp32 = false;
  // Whether weight decay applies. By default, it applies only to tensors with more than one dimension.
  std::optional<bool> decayed;
  bool decays() const { return decayed.value_or(shape.size() > 1); }
  int64_t count() const;  // number of elements
};

// The parameters of an adaptive vocabulary (model/adaptive_vocabulary.h).
std::vector<ParameterShape> adaptive_shapes(const ModelConfig& config);

// Returns the tensors in the order of the checkpoint. A head that is tied to the embedding is not listed.
std::vector<ParameterShape> parameter_shapes(const ModelConfig& config);

}  // namespace lazy
