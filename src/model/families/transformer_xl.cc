#include "model/families/families.h"

#include <algorithm>

#include "model/config_json.h"
#include "model/parameters.h"

namespace lazy {
namespace {

using config_json::Fields;
using nlohmann::json;

void transformer_xl_defaults(ModelConfig& m) {
  m.family = ModelFamily::transformer_xl;
  m.norm.kind = NormKind::layer;
  m.norm.eps = 1e-5;
  m.norm.post_norm = true;
  m.norm.final_norm = false;
  m.positions.kind = PositionKind::transformer_xl;
  m.mlp.kind = MlpKind::relu;
  m.mlp.bias = true;
  m.tie_embeddings = true;
  m.adaptive.used = true;
  m.bos_token_id = -1;
  m.eos_token_id = 0;
}

void read_adaptive(const Fields& fields, ModelConfig& m) {
  AdaptiveVocabulary& a = m.adaptive;
  a.width = 1024;
  a.divisor = 4;
  fields.integer({"d_embed"}, a.width);
  fields.integer({"div_val"}, a.divisor);
  a.cutoffs = {20000, 40000, 200000};
  const auto list = [&](const char* name, auto& out, bool (json::*is)() const noexcept, const char* expected) {
    const json* value = fields.find({name});
    if (!value) return;
    if (!value->is_array() || value->size() > 64) fields.wrong(name, expected, *value);
    out.clear();
    for (const json& entry : *value) {
      if (!(entry.*is)()) fields.wrong(name, expected, *value);
      out.push_back(entry.template get<typename std::decay_t<decltype(out)>::value_type>());
    }
  };
  list("cutoffs", a.cutoffs, &json::is_number_integer, "a list of at most 64 integers");
  bool shared = true;
  fields.boolean({"proj_share_all_but_first"}, shared);
  a.tied.assign(static_cast<size_t>(a.clusters()), shared);
  a.tied.front() = false;
  list("tie_projs", a.tied, &json::is_boolean, "a list of at most 64 booleans");
  a.tied.resize(static_cast<size_t>(a.clusters()), false);
}

// Reads the range of earlier tokens that are visible to each token. If same_length is true, every token attends to the
// mem_len latest keys: a sliding window that does not depend on segments. Otherwise, the tokens of a segment also
// attend to the mem_len tokens before the segment, and the length of a segment is tgt_len, or mem_len if tgt_len is
// absent.
void read_memory(const Fields& fields, ModelConfig& m) {
  int64_t memory = 1600, segment = 0;
  bool same_length = true;
  fields.integer({"mem_len"}, memory);
  fields.integer({"tgt_len"}, segment);
  fields.boolean({"same_length"}, same_length);
  constexpr int64_t kMost = int64_t{1} << 30;
  if (memory < (same_length ? 1 : 0) || memory > kMost) {
    fields.wrong("mem_len", same_length ? "1 to 2^30 because same_length is true" : "0 to 2^30", memory);
  }
  if (segment < 0 || segment > kMost) fields.wrong("tgt_len", "0 to 2^30", segment);
  if (same_length) {
    m.attention.window = memory;
  } else {
    m.positions.segment_length = segment > 0 ? segment : memory;
    m.positions.memory_length = memory;
  }
  m.positions.clamp_length = 1000;
  fields.integer({"clamp_len"}, m.positions.clamp_length);
  m.positions.clamp_length = std::max<int64_t>(m.positions.clamp_length, 0);
  const int64_t seen =
      std::max({m.attention.window, m.positions.segment_length + m.positions.memory_length, m.positions.clamp_length});
  if (seen > 0) m.max_length = seen;
}

void read_transformer_xl(const Fields& fields, ModelConfig& m) {
  m.hidden_size = 1024, m.num_layers = 18, m.attention.num_heads = 16, m.attention.head_dim = 64,
  m.mlp.intermediate_size = 4096;
  fields.integer({"d_model", "hidden_size"}, m.hidden_size);
  fields.integer({"n_layer", "num_hidden_layers"}, m.num_layers);
  fields.integer({"n_head", "num_attention_heads"}, m.attention.num_heads);
  fields.integer({"d_head"}, m.attention.head_dim);
  fields.integer({"d_inner"}, m.mlp.intermediate_size);
  fields.number({"layer_norm_epsilon"}, m.norm.eps);
  m.attention.num_kv_heads = m.attention.num_heads;
  bool before = false, untied = true;
  fields.boolean({"pre_lnorm"}, before);
  fields.boolean({"untie_r"}, untied);
  fields.boolean({"tie_weight"}, m.tie_embeddings);  // older name of tie_word_embeddings
  fields.number({"init_std"}, m.init_std);
  m.norm.post_norm = !before;
  m.positions.shared_relative_biases = !untied;
  fields.must_be("attn_type", 0);
  read_adaptive(fields, m);
  read_memory(fields, m);
}

void write_transformer_xl(const ModelConfig& m, nlohmann::ordered_json& out) {
  const AdaptiveVocabulary& a = m.adaptive;
  out["d_model"] = m.hidden_size;
  out["d_embed"] = a.width;
  out["d_head"] = m.attention.head_dim;
  out["d_inner"] = m.intermediate();
  out["n_head"] = m.attention.num_heads;
  out["n_layer"] = m.num_layers;
  out["div_val"] = a.divisor;
  out["cutoffs"] = a.cutoffs;
  out["tie_projs"] = a.tied;
  out["pre_lnorm"] = !m.norm.post_norm;
  out["untie_r"] = !m.positions.shared_relative_biases;
  out["same_length"] = m.attention.window > 0;
  out["mem_len"] = m.attention.window > 0 ? m.attention.window : m.positions.memory_length;
  if (m.positions.segment_length > 0) out["tgt_len"] = m.positions.segment_length;
  out["clamp_len"] = m.positions.clamp_length > 0 ? m.positions.clamp_length : -1;
  out["layer_norm_epsilon"] = m.norm.eps;
  out["init_std"] = m.init_std;
  out["attn_type"] = 0;
  for (const char* dropout : {"dropout", "dropatt"}) out[dropout] = 0.0;
}

void check_transformer_xl(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::layer && !m.norm.final_norm &&
                    m.positions.kind == PositionKind::transformer_xl && m.mlp.kind == MlpKind::relu && m.mlp.bias &&
                    m.adaptive.used && !m.attention.qkv_bias && !m.attention.output_bias && m.attention.query_bias &&
                    !m.attention.qk_norm && m.attention.scale_scores && !m.attention.scale_by_layer &&
                    m.attention.normalizer == Normalizer::softmax && m.attention.distance_bias_window == 0;
  if (!fits) {
    fail("model",
         "transfo-xl: expected the architecture of Transformer-XL, with positions transformer_xl, softmax and no "
         "distance bias, found positions {}, normalizer {} and distance_bias_window {}",
         name(m.positions.kind), name(m.attention.normalizer), m.attention.distance_bias_window);
  }
  if (m.attention.num_kv_heads != m.attention.num_heads)
    fail("model", "transfo-xl requires num_kv_heads = n_head ({}), found {}", m.attention.num_heads,
         m.attention.num_kv_heads);
}

// Adds the tensors that do not belong to a layer. A file may contain a tied table or a tied projection under two names.
void add_vocabulary(const ModelConfig& m, std::vector<StoredTensor>& out) {
  using namespace adaptive_names;
  const AdaptiveVocabulary& a = m.adaptive;
  for (const ParameterShape& p : adaptive_shapes(m)) out.push_back({p.name, p.shape, {p.name}});
  const auto also = [&](const std::string& name, const std::string& other) {
    for (StoredTensor& stored : out) {
      if (stored.name == name) stored.also.push_back(other);
    }
  };
  for (int64_t n = 0; n < a.tables() && m.tie_embeddings; ++n)
    also(adaptive_name(kTable, n), adaptive_name(kOutTable, n));
  for (int64_t n = 0; n < a.clusters(); ++n) {
    if (a.ties(n)) also(adaptive_name(kProjection, a.divisor == 1 ? 0 : n), adaptive_name(kOutProjection, n));
  }
}

std::vector<StoredTensor> transformer_xl_tensors(const ModelConfig& m) {
  const CheckpointNames names(m);
  const int64_t d = m.hidden_size, inner = m.intermediate(), heads = m.attention.num_heads * m.attention.head_dim;
  std::vector<StoredTensor> out;
  add_vocabulary(m, out);
  for (const auto& [name, ours] : {std::pair{"r_r_bias", &names.position_bias}, {"r_w_bias", &names.content_bias}}) {
    if (!m.positions.shared_relative_biases) continue;
    StoredTensor shared{
        std::string("transformer.") + name, {m.attention.num_heads, m.attention.head_dim}, {}, Interleaving::shared};
    for (int64_t i = 0; i < m.num_layers; ++i) {
      shared.parts.push_back(names.layer(i) + *ours);
      shared.also.push_back(fmt::format("transformer.layers.{}.dec_attn.{}", i, name));
    }
    out.push_back(std::move(shared));
  }
  for (int64_t i = 0; i < m.num_layers; ++i) {
    const std::string layer = fmt::format("transformer.layers.{}.", i), ours = names.layer(i);
    const auto plain = [&](const char* name, std::vector<int64_t> shape, const std::string& part) {
      out.push_back({layer + name, std::move(shape), {ours + part}});
    };
    out.push_back({layer + "dec_attn.qkv_net.weight",
                   {3 * heads, d},
                   {ours + names.q, ours + names.k, ours + names.v},
                   Interleaving::stacked});
    plain("dec_attn.o_net.weight", {d, heads}, names.o);
    plain("dec_attn.r_net.weight", {heads, d}, names.r_proj);
    if (!m.positions.shared_relative_biases) {
      plain("dec_attn.r_r_bias", {m.attention.num_heads, m.attention.head_dim}, names.position_bias);
      plain("dec_attn.r_w_bias", {m.attention.num_heads, m.attention.head_dim}, names.content_bias);
    }
    plain("dec_attn.layer_norm.weight", {d}, names.mixer_norm);
    plain("dec_attn.layer_norm.bias", {d}, names.mixer_norm_bias);
    plain("pos_ff.CoreNet.0.weight", {inner, d}, names.up);
    plain("pos_ff.CoreNet.0.bias", {inner}, names.up_bias);
    plain("pos_ff.CoreNet.3.weight", {d, inner}, names.down);
    plain("pos_ff.CoreNet.3.bias", {d}, names.down_bias);
    plain("pos_ff.layer_norm.weight", {d}, names.mlp_norm);
    plain("pos_ff.layer_norm.bias", {d}, names.mlp_norm_bias);
  }
  return out;
}

}  // namespace

const Family kTransformerXl = {ModelFamily::transformer_xl, "TransfoXLLMHeadModel",    {".pos_emb.inv_freq"},
                               transformer_xl_defaults,     read_transformer_xl,       write_transformer_xl,
                               check_transformer_xl,        transformer_xl_tensors,
                               /*quantized=*/false,         "crit.out_layers.0.weight"};

}  // namespace lazy
