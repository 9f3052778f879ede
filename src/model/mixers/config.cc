#include "model/mixers/config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/ranges.h>

#include "core/config.h"
#include "core/error.h"
#include "model/config.h"
#include "model/config_json.h"
#include "model/mixers/registry.h"

namespace lazy {

namespace {

bool reads(const MixerKind& kind, std::string_view key) {
  return std::find(kind.keys.begin(), kind.keys.end(), key) != kind.keys.end();
}

std::vector<std::string> mixer_names() {
  std::vector<std::string> names;
  for (const MixerKind* kind : mixer_kinds()) names.push_back(name(kind->type));
  return names;
}

// Throws an Error if the section [mixer] has a key that only other mixers support.
void refuse_foreign_keys(const ConfigSection& s, const std::string& mixer) {
  const MixerKind* own = find_mixer(mixer);
  for (const MixerKind* kind : mixer_kinds()) {
    for (const char* key : kind->keys) {
      if (!s.has(key) || (own && reads(*own, key))) continue;
      std::vector<std::string> owners;
      for (const MixerKind* other : mixer_kinds()) {
        if (reads(*other, key)) owners.push_back(name(other->type));
      }
      fail("model", "{}: mixer.{}: not supported by {}, only by {}", s.where(key), key, mixer, fmt::join(owners, ", "));
    }
  }
}

}  // namespace

std::vector<std::string> model_kinds() {
  std::vector<std::string> names = {"lazy", "transformer", "gpt2"};
  for (const std::string& name : mixer_names()) names.push_back(name);
  return names;
}

void read_mixer(Config& config, ModelConfig& m) {
  ConfigSection model = config.section("model");
  const int64_t every = model.integer("attention_every", 0, 0, m.num_layers);
  const auto layers = model.numbers("attention_layers", {});
  if (every > 0 && !layers.empty()) {
    fail("model", "{}: attention_every: cannot be combined with attention_layers", model.where("attention_every"));
  }
  for (int64_t i = every; every > 0 && i <= m.num_layers; i += every) m.mixer.attention_layers.push_back(i - 1);
  for (const double layer : layers) {
    if (layer != std::floor(layer) || layer < 0 || layer >= static_cast<double>(m.num_layers)) {
      fail("model", "{}: attention_layers: expected layers 0 to {}, found {}", model.where("attention_layers"),
           m.num_layers - 1, layer);
    }
    m.mixer.attention_layers.push_back(static_cast<int64_t>(layer));
  }
  std::sort(m.mixer.attention_layers.begin(), m.mixer.attention_layers.end());
  ConfigSection s = config.section("mixer");
  refuse_foreign_keys(s, name(m.mixer.type));
  MixerConfig& x = m.mixer;
  x.heads = s.integer("heads", x.heads, 0);
  x.key_dim = s.integer("key_dim", x.key_dim, 0);
  x.value_dim = s.integer("value_dim", x.value_dim, 0);
  x.conv_size = s.integer("conv_size", x.conv_size, 0);
  x.chunk = s.integer("chunk", x.chunk, 0);
  x.state_size = s.integer("state_size", x.state_size, 1);
  x.groups = s.integer("groups", x.groups, 1);
  x.gate = s.boolean("gate", x.gate);
  x.memory_depth = s.integer("memory_depth", x.memory_depth, 1);
  x.memory_expansion = s.integer("memory_expansion", x.memory_expansion, 1);
  x.memory_norm = s.boolean("memory_norm", x.memory_norm);
  x.persistent = s.integer("persistent", x.persistent, 0);
  x.segment = s.integer("segment", x.segment, 1);
}

void refuse_mixer_keys(Config& config, const std::string& kind) {
  const ConfigSection model = config.section("model"), mixer = config.section("mixer");
  // These keys apply to all mixers. refuse_foreign_keys() below checks the keys that apply only to some mixers.
  for (const char* key : {"heads", "key_dim", "value_dim", "chunk"}) {
    if (!mixer.has(key)) continue;
    fail("model",
         "{}: mixer.{}: not supported by {}, whose heads are set by num_heads and head_dim of [model]; supported by {}",
         mixer.where(key), key, kind, fmt::join(mixer_names(), ", "));
  }
  for (const char* key : {"attention_every", "attention_layers"}) {
    if (!model.has(key)) continue;
    fail("model",
         "{}: {}: every layer of {} uses attention; for a hybrid model, set kind to the mixer of the layers without "
         "attention: {}",
         model.where(key), key, kind, fmt::join(mixer_names(), ", "));
  }
  refuse_foreign_keys(mixer, kind);
}

namespace {

constexpr const char* kAttentionKeys[] = {"num_heads",
                                          "num_kv_heads",
                                          "head_dim",
                                          "window_size",
                                          "normalizer",
                                          "offset",
                                          "offset_trainable",
                                          "offset_init",
                                          "sink_trainable",
                                          "sink_init",
                                          "attention_gate",
                                          "distance_bias_window",
                                          "distance_bias_init_std",
                                          "distance_bias_init_apart",
                                          "positions",
                                          "rope_theta",
                                          "partial_rotary_factor",
                                          "rope_interleaved",
                                          "alibi_trainable",
                                          "segment_length",
                                          "memory_length",
                                          "clamp_length"};

}  // namespace

void refuse_attention_keys(Config& config, const ModelConfig& m) {
  if (m.attends()) return;
  ConfigSection s = config.section("model");
  for (const char* key : kAttentionKeys) {
    if (s.has(key) && !(mixer_kind(m).rope && std::string_view(key) == "rope_theta")) {
      fail("model",
           "{}: {}: only attention uses this key, and no layer of this {} model uses attention; either set "
           "attention_layers, or set the sizes of the mixer in [mixer]",
           s.where(key), key, name(m.mixer.type));
    }
  }
}

void check_mixer(const ModelConfig& m) {
  const MixerKind& kind = mixer_kind(m);
  const MixerConfig& x = m.mixer;
  check_range(x.heads, "mixer.heads", 1, 1 << 14);
  check_range(x.key_dim, "mixer.key_dim", 1, 1 << 14);
  check_range(x.value_dim, "mixer.value_dim", 1, 1 << 14);
  check_range(x.conv_size, "mixer.conv_size", 0, 1 << 10);
  check_range(x.state_size, "mixer.state_size", 1, 1 << 14);
  check_range(x.groups, "mixer.groups", 1, x.heads);
  check_range(x.memory_depth, "mixer.memory_depth", 1, 1 << 10);
  check_range(x.memory_expansion, "mixer.memory_expansion", 1, 1 << 10);
  check_range(x.persistent, "mixer.persistent", 0, 1 << 14);
  check_range(x.segment, "mixer.segment", 1, 1 << 24);
  // The value 0 is valid: the mixer then chooses the chunk size, which affects only the speed.
  if (x.chunk < 0 || x.chunk > m.max_length) {
    const bool follows = x.chunk == x.segment && reads(kind, "segment");
    fail("model", "mixer.{}: expected 1 to max_position_embeddings ({}), found {}", follows ? "segment" : "chunk",
         m.max_length, x.chunk);
  }
  for (size_t i = 0; i < m.mixer.attention_layers.size(); ++i) {
    const int64_t layer = m.mixer.attention_layers[i];
    if (layer < 0 || layer >= m.num_layers || (i > 0 && layer <= m.mixer.attention_layers[i - 1])) {
      fail("model", "attention_layers: expected ascending layers 0 to {}, found {}", m.num_layers - 1, layer);
    }
  }
  if (static_cast<int64_t>(m.mixer.attention_layers.size()) == m.num_layers) {
    fail("model", "attention_layers: expected a list that leaves at least one layer to {}, found all {} layers",
         name(m.mixer.type), m.num_layers);
  }
  if (m.attention.window > 0 && !m.attends())
    fail("model", "window_size: expected -1, because {} does not use a window, found {}", name(m.mixer.type),
         m.attention.window);
  kind.check(m);
}

void read_elastic(const config_json::Fields& fields, ModelConfig& m) {
  fields.choice("normalizer", m.attention.normalizer, kNormalizerNames);
  fields.choice("offset", m.attention.offset, kOffsetKinds);
  fields.boolean({"offset_trainable"}, m.attention.offset_trainable);
  fields.number({"offset_init"}, m.attention.offset_init);
  fields.integer({"distance_bias_window"}, m.attention.distance_bias_window);
  fields.number({"distance_bias_init_std"}, m.attention.distance_bias_init_std);
}

void write_elastic(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["normalizer"] = name(m.attention.normalizer);
  out["offset"] = name(m.attention.offset);
  out["offset_trainable"] = m.attention.offset_trainable;
  out["offset_init"] = m.attention.offset_init;
  out["distance_bias_window"] = m.attention.distance_bias_window;
  out["distance_bias_init_std"] = m.attention.distance_bias_init_std;
}

void read_lazy(const config_json::Fields& fields, ModelConfig& m) {
  fields.choice("positions", m.positions.kind, kPositionKinds);
  fields.number({"partial_rotary_factor"}, m.positions.partial_rotary_factor);
  fields.boolean({"rope_interleaved"}, m.positions.rope_interleaved);
  fields.boolean({"alibi_trainable"}, m.positions.alibi_trainable);
  fields.integer({"segment_length"}, m.positions.segment_length);
  fields.integer({"memory_length"}, m.positions.memory_length);
  fields.integer({"clamp_length"}, m.positions.clamp_length);
  fields.boolean({"sink_trainable"}, m.attention.sink_trainable);
  fields.number({"sink_init"}, m.attention.sink_init);
  fields.choice("attention_gate", m.attention.gate, kGateKinds);
  read_elastic(fields, m);
}

void write_lazy(const ModelConfig& m, nlohmann::ordered_json& out) {
  if (m.positions.kind != PositionKind::rope) out["positions"] = name(m.positions.kind);
  if (m.positions.partial_rotary_factor != 1) out["partial_rotary_factor"] = m.positions.partial_rotary_factor;
  if (m.positions.rope_interleaved) out["rope_interleaved"] = true;
  if (m.positions.kind == PositionKind::alibi) out["alibi_trainable"] = m.positions.alibi_trainable;
  if (m.positions.kind == PositionKind::transformer_xl) {
    out["segment_length"] = m.positions.segment_length;
    out["memory_length"] = m.positions.memory_length;
    out["clamp_length"] = m.positions.clamp_length;
  }
  write_elastic(m, out);
  if (!m.attention.sink_trainable) out["sink_trainable"] = false;
  if (m.attention.sink_init != 0) out["sink_init"] = m.attention.sink_init;
  if (m.attention.gate != GateKind::none) out["attention_gate"] = name(m.attention.gate);
}

void read_hybrid(const config_json::Fields& fields, ModelConfig& m) {
  const nlohmann::json* attention = fields.find({"attn"});
  if (!attention) return;
  if (!attention->is_object()) fields.wrong("attn", "an object", *attention);
  const config_json::Fields inner(*attention, fields.file());
  const nlohmann::json* layers = inner.find({"layers"});
  if (!layers || !layers->is_array())
    fields.wrong("attn.layers", "a list of layer indices", layers ? *layers : nlohmann::json());
  for (const nlohmann::json& layer : *layers) {
    if (!layer.is_number_integer()) fields.wrong("attn.layers", "integers", layer);
    m.mixer.attention_layers.push_back(layer.get<int64_t>());
  }
  std::sort(m.mixer.attention_layers.begin(), m.mixer.attention_layers.end());
  inner.must_be_absent("qkv_bias", "biases in the projections");
  inner.must_be_absent("qk_norm", "norms of queries and keys");
  inner.required_integer({"num_heads"}, m.attention.num_heads);
  m.attention.num_kv_heads = m.attention.num_heads;
  inner.integer({"num_kv_heads"}, m.attention.num_kv_heads);
  m.attention.head_dim = m.attention.num_heads > 0 ? m.hidden_size / m.attention.num_heads : 0;
  inner.integer({"head_dim"}, m.attention.head_dim);
  inner.integer({"window_size"}, m.attention.window);
  inner.number({"rope_theta"}, m.positions.rope_base);
  read_lazy(inner, m);
}

void write_hybrid(const ModelConfig& m, nlohmann::ordered_json& out) {
  if (!m.attends()) return;
  nlohmann::ordered_json& attention = out["attn"];
  attention["layers"] = m.mixer.attention_layers;
  attention["num_heads"] = m.attention.num_heads;
  attention["num_kv_heads"] = m.attention.num_kv_heads;
  attention["head_dim"] = m.attention.head_dim;
  attention["window_size"] =
      m.attention.window > 0 ? nlohmann::ordered_json(m.attention.window) : nlohmann::ordered_json();
  attention["rope_theta"] = m.positions.rope_base;
  if (!m.is_plain_attention()) write_lazy(m, attention);
}

}  // namespace lazy
