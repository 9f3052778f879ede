#include "model/mixers/titans_kind.h"

#include "core/error.h"
#include "model/config_json.h"

namespace lazy {
namespace {

bool is_mac(const ModelConfig& m) { return m.mixer == "titans_mac"; }
bool is_mag(const ModelConfig& m) { return m.mixer == "titans_mag"; }
bool has_attention(const ModelConfig& m) { return m.mixer != "titans_lmm"; }
// The memory's answers pass a norm, a gate and a projection of their own, as LMM.
bool has_output(const ModelConfig& m) { return !is_mac(m) && !is_mag(m); }

void infer_titans_sizes(ModelConfig& m) {
  MixerConfig& x = m.mix;
  infer_square_heads_sizes(m);
  if (x.chunk == 0) x.chunk = is_mac(m) ? x.segment : 64;
}

void check_titans(const ModelConfig& m) {
  const MixerConfig& x = m.mix;
  check_square_heads(m);
  if (!has_attention(m)) return;
  if (m.num_heads * m.head_dim != m.hidden_size || m.num_kv_heads != m.num_heads) {
    fail("model",
         "num_heads: expected num_heads times head_dim to be hidden_size ({}), and as many num_kv_heads, found {} "
         "times {}, {}",
         m.hidden_size, m.num_heads, m.head_dim, m.num_kv_heads);
  }
  if (m.normalizer != "softmax" || m.distance_bias_window > 0) {
    fail("model", "normalizer: expected softmax without a distance bias beside a neural memory, found {}",
         m.normalizer);
  }
  if (m.positions == "alibi" || m.positions == "transformer_xl") {
    fail("model", "positions: expected rope, none, learned or sinusoidal beside a neural memory, found {}",
         m.positions);
  }
  if (m.partial_rotary_factor != 1 || m.rope_interleaved) {
    fail("model",
         "partial_rotary_factor, rope_interleaved: expected RoPE on whole heads beside a neural memory, found {}, {}",
         m.partial_rotary_factor, m.rope_interleaved);
  }
  if (!is_mac(m)) return;
  if (m.window > 0)
    fail("model", "window_size: expected -1, mixer.segment ({}) bounds what titans_mac attends to, found {}", x.segment,
         m.window);
  if (x.chunk != x.segment) fail("model", "mixer.chunk: expected mixer.segment ({}), found {}", x.segment, x.chunk);
}

std::vector<ParameterShape> shapes_titans(const ModelConfig& m) {
  const MixerConfig& x = m.mix;
  const int64_t d = m.hidden_size;
  std::vector<ParameterShape> out;
  const auto square = [&](const std::string& name) { out.push_back({name + ".weight", {d, d}}); };
  if (has_attention(m)) {
    if (x.persistent > 0) out.push_back({"persistent", {x.persistent, d}});
    for (const char* name : {"attn.q_proj", "attn.k_proj", "attn.v_proj"}) square(name);
  }
  for (const char* name : {"memory.q_proj", "memory.k_proj", "memory.v_proj"}) square(name);
  for (const char* name : {"memory.q_conv1d.weight", "memory.k_conv1d.weight", "memory.v_conv1d.weight"}) {
    if (x.conv_size > 0) out.push_back({name, {d, 1, x.conv_size}});
  }
  for (const char* name : {"memory.step_proj", "memory.momentum_proj", "memory.decay_proj"}) {
    out.push_back({std::string(name) + ".weight", {x.heads, d}});
    out.push_back({std::string(name) + ".bias", {x.heads}});
  }
  const int64_t inner = x.memory_expansion * x.key_dim;
  for (int64_t n = 1; n <= x.memory_depth; ++n) {
    out.push_back({fmt::format("memory.start_{}", n),
                   {x.heads, n == 1 ? x.key_dim : inner, n == x.memory_depth ? x.value_dim : inner}});
  }
  if (x.memory_norm) out.push_back({"memory.model_norm.weight", {x.heads, x.value_dim}});
  if (has_output(m)) {
    out.push_back({"memory.norm.weight", {x.value_dim}});
    if (x.gate) square("memory.g_proj");
    square("memory.o_proj");
    if (has_attention(m)) square("attn.o_proj");
    return out;
  }
  if (is_mac(m)) out.push_back({"memory.recalled_norm.weight", {d}});
  out.push_back({"attn.norm.weight", {d}});
  out.push_back({"memory.norm.weight", {d}});
  square("o_proj");
  return out;
}

void read_titans(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mix;
  fields.integer({"num_memory_heads"}, x.heads);
  fields.integer({"memory_chunk_size"}, x.chunk);
  fields.integer({"memory_depth"}, x.memory_depth);
  fields.integer({"memory_expansion"}, x.memory_expansion);
  fields.boolean({"memory_norm"}, x.memory_norm);
  fields.integer({"conv_size"}, x.conv_size);
  fields.boolean({"use_gate"}, x.gate);
  fields.integer({"num_persistent_tokens"}, x.persistent);
  fields.integer({"segment_size"}, x.segment);
  if (x.heads < 0 || (x.heads > 0 && m.hidden_size % x.heads != 0)) {
    fields.wrong("num_memory_heads", "a divisor of hidden_size", *fields.find({"num_memory_heads"}));
  }
}

void write_titans(const ModelConfig& m, nlohmann::ordered_json& out) {
  const MixerConfig& x = m.mix;
  out["num_memory_heads"] = x.heads;
  out["memory_chunk_size"] = x.chunk;
  out["memory_depth"] = x.memory_depth;
  out["memory_expansion"] = x.memory_expansion;
  out["memory_norm"] = x.memory_norm;
  out["conv_size"] = x.conv_size;
  if (has_output(m)) out["use_gate"] = x.gate;
  if (has_attention(m)) out["num_persistent_tokens"] = x.persistent;
  if (is_mac(m)) out["segment_size"] = x.segment;
}

// keys: of [mixer], beside those that all four read.
MixerKind titans_kind(const char* name, const char* architecture, bool attends, std::vector<const char*> keys) {
  keys.insert(keys.end(), {"conv_size", "memory_depth", "memory_expansion", "memory_norm"});
  return {.name = name,
          .model_type = name,
          .architecture = architecture,
          .window = attends,
          .keys = std::move(keys),
          .infer_sizes = infer_titans_sizes,
          .check = check_titans,
          .shapes = shapes_titans,
          .read = read_titans,
          .write = write_titans};
}

}  // namespace

const MixerKind kTitansLmm = titans_kind("titans_lmm", "TitansLMMForCausalLM", false, {"gate"}),
                kTitansMac = titans_kind("titans_mac", "TitansMACForCausalLM", true, {"persistent", "segment"}),
                kTitansMag = titans_kind("titans_mag", "TitansMAGForCausalLM", true, {"persistent"}),
                kTitansMal = titans_kind("titans_mal", "TitansMALForCausalLM", true, {"persistent", "gate"});

}  // namespace lazy
