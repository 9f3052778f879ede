#include "model/parameters.h"

#include "model/families/families.h"
#include "model/mixers/registry.h"

namespace lazy {

CheckpointNames::CheckpointNames(const ModelConfig& config) {
  const bool llama = config.all_attention() && config.architecture() != "LazyForCausalLM";
  const std::string attention = llama ? "self_attn." : "attn.";
  embedding = llama ? "model.embed_tokens.weight" : "model.embeddings.weight";
  mixer_norm = llama ? "input_layernorm.weight" : "attn_norm.weight";
  mlp_norm = llama ? "post_attention_layernorm.weight" : "mlp_norm.weight";
  if (llama && config.norm.branch_norm) {  // OLMo 2 normalizes the outputs of the mixer and the MLP
    mixer_norm = "post_attention_layernorm.weight";
    mlp_norm = "post_feedforward_layernorm.weight";
  }
  if (config.norm.sandwich_norm) {
    mixer_output_norm = "post_attention_layernorm.weight";
    mlp_norm = "pre_feedforward_layernorm.weight";
    mlp_output_norm = "post_feedforward_layernorm.weight";
  }
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
  output_gate = attention + "gate_proj.weight";
  slopes = attention + "alibi_slopes";
  r_proj = attention + "r_proj.weight";  // abbreviated as in the original Transformer-XL code
  content_bias = attention + "r_w_bias";
  position_bias = attention + "r_r_bias";
  if (config.converted) {
    distance_bias = attention + "lazy_distance_bias";
    offset = attention + "lazy_tau";
  }
  // TTT models use the tensor names of ttt-lm-pytorch.
  if (config.mixer.type == MixerType::ttt_linear || config.mixer.type == MixerType::ttt_mlp) {
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

int64_t ParameterShape::count() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

namespace {

std::vector<ParameterShape> attention_shapes(const ModelConfig& c, const CheckpointNames& names) {
  const int64_t d = c.hidden_size, q = c.attention.num_heads * c.attention.head_dim,
                kv = c.attention.num_kv_heads * c.attention.head_dim;
  std::vector<ParameterShape> out = {{names.q, {q, d}}};
  if (c.gate_size() > 0) out.push_back({names.output_gate, {c.gate_size(), d}});
  for (ParameterShape& p : std::vector<ParameterShape>{{names.k, {kv, d}}, {names.v, {kv, d}}, {names.o, {d, q}}})
    out.push_back(std::move(p));
  if (c.attention.qkv_bias) {
    out.push_back({names.q_bias, {q}, c.attention.query_bias});
    out.push_back({names.k_bias, {kv}});
    out.push_back({names.v_bias, {kv}});
  }
  if (c.attention.output_bias) out.push_back({names.o_bias, {d}});
  if (c.attention.qk_norm) {
    out.push_back({names.q_norm, {c.attention.qk_norm_joint ? q : c.attention.head_dim}});
    out.push_back({names.k_norm, {c.attention.qk_norm_joint ? kv : c.attention.head_dim}});
  }
  if (c.attention.distance_bias_window > 0)
    out.push_back({names.distance_bias,
                   {c.attention.num_heads, c.attention.distance_bias_window},
                   true,
                   /*keep_fp32=*/true,
                   /*decayed=*/false});
  if (c.has_offset())
    out.push_back({names.offset, {c.attention.num_heads}, c.attention.offset_trainable, /*keep_fp32=*/true});
  if (c.has_sink())
    out.push_back({names.sink, {c.attention.num_heads}, c.attention.sink_trainable, /*keep_fp32=*/true});
  if (c.positions.kind == PositionKind::alibi)
    out.push_back({names.slopes, {c.attention.num_heads}, c.positions.alibi_trainable, /*keep_fp32=*/true});
  if (c.positions.kind == PositionKind::transformer_xl) {
    out.push_back({names.r_proj, {q, d}});
    out.push_back(
        {.name = names.content_bias, .shape = {c.attention.num_heads, c.attention.head_dim}, .decayed = false});
    out.push_back(
        {.name = names.position_bias, .shape = {c.attention.num_heads, c.attention.head_dim}, .decayed = false});
  }
  return out;
}

// Returns the tensors of one layer, with names relative to the layer.
std::vector<ParameterShape> layer_shapes(const ModelConfig& c, const CheckpointNames& names, MixerType mixer) {
  const int64_t d = c.hidden_size;
  const bool layer_norm = c.norm.kind == NormKind::layer;
  std::vector<ParameterShape> out = {{names.mixer_norm, {d}}};
  if (layer_norm) out.push_back({names.mixer_norm_bias, {d}});
  for (ParameterShape& p : mixer == MixerType::attention ? attention_shapes(c, names) : mixer_kind(c).shapes(c))
    out.push_back(std::move(p));
  if (c.norm.sandwich_norm) out.push_back({names.mixer_output_norm, {d}});
  if (!c.mlp.enabled) return out;
  out.push_back({names.mlp_norm, {d}});
  if (c.norm.sandwich_norm) out.push_back({names.mlp_output_norm, {d}});
  if (layer_norm) out.push_back({names.mlp_norm_bias, {d}});
  if (c.mlp.kind == MlpKind::experts) {
    const int64_t n = c.mlp.experts, inner = c.intermediate();
    out.push_back({names.router, {n, d}});
    out.push_back({names.router_bias, {n}});
    out.push_back({names.experts_gate_up, {n, d, 2 * inner}});
    out.push_back({.name = names.experts_gate_up_bias, .shape = {n, 2 * inner}, .decayed = false});
    out.push_back({names.experts_down, {n, inner, d}});
    out.push_back({.name = names.experts_down_bias, .shape = {n, d}, .decayed = false});
    return out;
  }
  if (c.mlp.gated()) out.push_back({names.gate, {c.intermediate(), d}});
  out.push_back({names.up, {c.intermediate(), d}});
  if (c.mlp.bias) out.push_back({names.up_bias, {c.intermediate()}});
  out.push_back({names.down, {d, c.intermediate()}});
  if (c.mlp.bias) out.push_back({names.down_bias, {d}});
  return out;
}

}  // namespace

std::vector<ParameterShape> adaptive_shapes(const ModelConfig& c) {
  const AdaptiveVocabulary& a = c.adaptive;
  std::vector<ParameterShape> out;
  const auto add = [&](const char* name, std::vector<int64_t> shape, int64_t cluster = -1) {
    out.push_back({adaptive_name(name, cluster), std::move(shape)});
  };
  for (int64_t n = 0; n < a.tables(); ++n) add(adaptive_names::kTable, {a.rows(c.vocab_size, n), a.width_of(n)}, n);
  for (int64_t n = 0; n < a.tables() && a.projected(c.hidden_size); ++n)
    add(adaptive_names::kProjection, {c.hidden_size, a.width_of(n)}, n);
  if (a.clusters() > 1) {
    add(adaptive_names::kClusterWeight, {a.clusters() - 1, a.width});
    add(adaptive_names::kClusterBias, {a.clusters() - 1});
  }
  for (int64_t n = 0; n < a.tables(); ++n) {
    if (!c.tie_embeddings) add(adaptive_names::kOutTable, {a.rows(c.vocab_size, n), a.width_of(n)}, n);
    add(adaptive_names::kOutBias, {a.rows(c.vocab_size, n)}, n);
  }
  for (int64_t n = 0; n < a.clusters() && a.projected(c.hidden_size); ++n) {
    if (!a.ties(n)) add(adaptive_names::kOutProjection, {c.hidden_size, a.width_of(n)}, n);
  }
  return out;
}

std::vector<ParameterShape> parameter_shapes(const ModelConfig& c) {
  const CheckpointNames names(c);
  std::vector<ParameterShape> out;
  if (c.adaptive.used) {
    out = adaptive_shapes(c);
  } else {
    out.push_back({names.embedding, {c.vocab_size, c.hidden_size}});
  }
  if (c.norm.embedding_norm) {
    out.push_back({names.embedding_norm, {c.hidden_size}});
    out.push_back({names.embedding_norm_bias, {c.hidden_size}});
  }
  if (c.positions.kind == PositionKind::learned) out.push_back({names.positions, {c.max_length, c.hidden_size}});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    for (ParameterShape& p : layer_shapes(c, names, c.mixer_of(i))) {
      p.name = names.layer(i) + p.name;
      out.push_back(std::move(p));
    }
  }
  if (c.norm.final_norm) out.push_back({names.final_norm, {c.hidden_size}});
  if (c.norm.final_norm && c.norm.kind == NormKind::layer) out.push_back({names.final_norm_bias, {c.hidden_size}});
  if (!c.tie_embeddings && !c.adaptive.used) out.push_back({names.head, {c.vocab_size, c.hidden_size}});
  return out;
}

ParameterCount count_parameters(const ModelConfig& c) {
  const CheckpointNames names(c);
  const auto of_layer = [&](MixerType mixer) {
    int64_t sum = 0;
    for (const ParameterShape& p : layer_shapes(c, names, mixer)) sum += p.trained ? p.count() : 0;
    return sum;
  };
  const int64_t attending = c.num_attention_layers();
  ParameterCount count;
  const auto of_vocabulary = [&](bool tied) {
    if (!c.adaptive.used) return (tied ? 1 : 2) * c.vocab_size * c.hidden_size;
    ModelConfig other = c;
    other.tie_embeddings = tied;
    int64_t sum = 0;
    for (const ParameterShape& p : adaptive_shapes(other)) sum += p.count();
    return sum;
  };
  count.embedding = of_vocabulary(true);
  count.tied = count.embedding +
               ((!c.norm.final_norm               ? 0
                 : c.norm.kind == NormKind::layer ? 2
                                                  : 1) +
                (c.norm.embedding_norm ? 2 : 0)) *
                   c.hidden_size +
               (c.positions.kind == PositionKind::learned ? c.max_length * c.hidden_size : 0);
  if (attending > 0) count.tied += attending * of_layer(MixerType::attention);
  if (attending < c.num_layers) count.tied += (c.num_layers - attending) * of_layer(c.mixer.type);
  if (c.positions.shared_relative_biases)
    count.tied -= (c.num_layers - 1) * 2 * c.attention.num_heads * c.attention.head_dim;
  count.untied = count.tied + of_vocabulary(false) - count.embedding;
  count.total = c.tie_embeddings ? count.tied : count.untied;
  return count;
}

}  // namespace lazy
