#include "model/parameter_shapes.h"

#include "model/checkpoint_names.h"

namespace lazy {

int64_t ParameterShape::count() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

std::vector<ParameterShape> parameter_shapes(const ModelConfig& c) {
  const CheckpointNames names(c);
  const int64_t d = c.hidden_size, q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  std::vector<ParameterShape> out = {{names.embedding, {c.vocab_size, d}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string layer = names.layer(i);
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, bool trained = true) {
      out.push_back({layer + name, std::move(shape), trained});
    };
    add(names.attention_norm, {d});
    add(names.q, {q, d});
    add(names.k, {kv, d});
    add(names.v, {kv, d});
    add(names.o, {d, q});
    if (c.attention_bias) {
      add(names.q_bias, {q});
      add(names.k_bias, {kv});
      add(names.v_bias, {kv});
    }
    if (c.output_bias) add(names.o_bias, {d});
    if (c.qk_norm) {
      add(names.q_norm, {c.head_dim});
      add(names.k_norm, {c.head_dim});
    }
    if (c.distance_bias_window > 0) add(names.distance_bias, {c.num_heads, c.distance_bias_window});
    if (c.has_offset()) add(names.offset, {c.num_heads}, c.offset_trainable);
    add(names.mlp_norm, {d});
    add(names.gate, {c.intermediate(), d});
    add(names.up, {c.intermediate(), d});
    add(names.down, {d, c.intermediate()});
  }
  out.push_back({names.final_norm, {d}});
  if (!c.tie_embeddings) out.push_back({names.head, {c.vocab_size, d}});
  return out;
}

}  // namespace lazy
