#include "model/mixers/titans/titans.h"

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "core/error.h"
#include "model/config_json.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/mixer.h"
#include "model/mixers/titans/attention.h"
#include "model/mixers/titans/memory_as_context.h"
#include "model/mixers/titans/memory_branch.h"

namespace lazy {
namespace {

class TitansLmm final : public TitansMixer {
 public:
  TitansLmm(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  MemoryOutput output_;
};

class TitansMag final : public TitansMixer {
 public:
  TitansMag(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  SlidingAttention attention_;
  BranchProduct product_;
};

class TitansMal final : public TitansMixer {
 public:
  TitansMal(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  MemoryOutput memory_output_;
  SlidingAttention attention_;
  Linear output_;
};

class BranchStates {
 public:
  // `persistent` is the number of learned tokens that the memory processes before the tokens of the text.
  BranchStates(const ForwardOptions& options, int64_t layer, int64_t persistent);

  // Return the states that the attention window and the memory read and update, or null without a cache. The state of
  // the window consists of two tensors, keys and values.
  std::vector<at::Tensor>* window() { return kept_ ? &window_ : nullptr; }
  std::vector<at::Tensor>* memory() { return kept_ ? &memory_ : nullptr; }
  int64_t seen() const { return seen_; }  // number of tokens that the memory has already processed
  void keep();                            // writes the states to the cache; does nothing without a cache

 private:
  std::vector<at::Tensor>* kept_ = nullptr;
  std::vector<at::Tensor> window_, memory_;
  int64_t seen_ = 0;
};

TitansLmm::TitansLmm(const ModelConfig& c, int64_t, at::Device device) : TitansMixer(c, device), output_(c, device) {
  register_parameters(output_.own_parameters(), device);
  output_.bind_parameters(table_);
}

std::vector<const Linear*> TitansLmm::products() const {
  auto all = memory_.products();
  for (const Linear* product : output_.products()) all.push_back(product);
  return all;
}

at::Tensor TitansLmm::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  std::vector<at::Tensor>* state = options.cache ? &layer_state(*options.cache, layer) : nullptr;
  return output_.forward(memory_.forward(x, state, options.cache ? options.cache->length : 0, options.packed), x);
}

TitansMag::TitansMag(const ModelConfig& c, int64_t layer, at::Device device)
    : TitansMixer(c, device), attention_(c, layer, device), product_(c, device) {
  NamedTensors made = qkv_parameters(attention_.qkv);
  for (auto& item : product_.own_parameters()) made.push_back(item);
  register_parameters(made, device);
  product_.bind_parameters(table_);
}

std::vector<const Linear*> TitansMag::products() const {
  auto all = memory_.products();
  all.push_back(&attention_.qkv);
  all.push_back(&product_.output());
  return all;
}

at::Tensor TitansMag::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const at::Tensor persistent = persistent_tokens(table_, config_);
  const WithPersistent all = with_persistent(x.value, persistent, options);
  BranchStates states(options, layer, persistent.size(0));
  const at::Tensor memory = all.text(product_.normalized(
      memory_.forward(all.x, states.memory(), states.seen(), all.packed).flatten(2), x.value.scalar_type()));
  const at::Tensor attended =
      attention_.forward(x,
                         {.positions = all.text(all.positions.unsqueeze(0)).squeeze(0),
                          .cu_seqlens = options.packed ? options.packed->cu_seqlens_q : at::Tensor()},
                         persistent, states.window(), options.deterministic);
  states.keep();
  return product_.forward(attended, memory, x.value.scalar_type());
}

TitansMal::TitansMal(const ModelConfig& c, int64_t layer, at::Device device)
    : TitansMixer(c, device),
      memory_output_(c, device),
      attention_(c, layer, device),
      output_(c.hidden_size, {c.hidden_size}, device) {
  NamedTensors made = qkv_parameters(attention_.qkv);
  for (auto& item : memory_output_.own_parameters()) made.push_back(item);
  made.emplace_back("attn.o_proj.weight", output_.parts()[0]);
  register_parameters(made, device);
  memory_output_.bind_parameters(table_);
}

std::vector<const Linear*> TitansMal::products() const {
  auto all = memory_.products();
  for (const Linear* product : memory_output_.products()) all.push_back(product);
  all.push_back(&attention_.qkv);
  all.push_back(&output_);
  return all;
}

at::Tensor TitansMal::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const at::Tensor persistent = persistent_tokens(table_, config_);
  const WithPersistent all = with_persistent(x.value, persistent, options);
  BranchStates states(options, layer, persistent.size(0));
  const at::Tensor y =
      memory_output_.forward(memory_.forward(all.x, states.memory(), states.seen(), all.packed), all.x);
  const at::Tensor attended = attention_.forward(
      y, {.positions = all.positions, .cu_seqlens = all.packed ? all.packed->cu_seqlens_q : at::Tensor()}, {},
      states.window(), options.deterministic);
  states.keep();
  return output_.forward(all.text(attended))[0];
}

BranchStates::BranchStates(const ForwardOptions& options, int64_t layer, int64_t persistent) {
  if (!options.cache) return;
  kept_ = &layer_state(*options.cache, layer);
  if (options.cache->length == 0) return;
  window_.assign(kept_->begin(), kept_->begin() + 2);
  memory_.assign(kept_->begin() + 2, kept_->end());
  seen_ = persistent + options.cache->length;
}

void BranchStates::keep() {
  if (!kept_) return;
  *kept_ = window_;
  kept_->insert(kept_->end(), memory_.begin(), memory_.end());
}

bool is_mac(const ModelConfig& m) { return m.mixer.type == MixerType::titans_mac; }
bool is_mag(const ModelConfig& m) { return m.mixer.type == MixerType::titans_mag; }
bool has_attention(const ModelConfig& m) { return m.mixer.type != MixerType::titans_lmm; }
// True for the variants LMM and MAL, in which the memory's output has a separate norm, gate and projection.
bool has_output(const ModelConfig& m) { return !is_mac(m) && !is_mag(m); }

void infer_titans_sizes(ModelConfig& m) {
  MixerConfig& x = m.mixer;
  infer_square_heads_sizes(m);
  if (x.chunk == 0) x.chunk = is_mac(m) ? x.segment : 64;
}

void check_titans(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  check_square_heads(m);
  if (!has_attention(m)) return;
  if (m.attention.num_heads * m.attention.head_dim != m.hidden_size ||
      m.attention.num_kv_heads != m.attention.num_heads) {
    fail(
        "model",
        "num_heads: expected num_heads * head_dim = hidden_size ({}) and num_kv_heads = num_heads, found num_heads {}, "
        "head_dim {} and num_kv_heads {}",
        m.hidden_size, m.attention.num_heads, m.attention.head_dim, m.attention.num_kv_heads);
  }
  if (m.attention.normalizer != Normalizer::softmax || m.attention.distance_bias_window > 0) {
    fail("model", "normalizer: a neural memory requires softmax without a distance bias, found {}",
         name(m.attention.normalizer));
  }
  if (m.positions.kind == PositionKind::alibi || m.positions.kind == PositionKind::transformer_xl) {
    fail("model", "positions: a neural memory requires rope, none, learned or sinusoidal, found {}",
         name(m.positions.kind));
  }
  if (m.positions.partial_rotary_factor != 1 || m.positions.rope_interleaved) {
    fail("model",
         "a neural memory requires partial_rotary_factor 1 and rope_interleaved false, found partial_rotary_factor {} "
         "and rope_interleaved {}",
         m.positions.partial_rotary_factor, m.positions.rope_interleaved);
  }
  if (!is_mac(m)) return;
  if (m.attention.window > 0)
    fail("model", "window_size: expected -1, because titans_mac attends within mixer.segment ({}), found {}", x.segment,
         m.attention.window);
  if (x.chunk != x.segment)
    fail("model", "mixer.chunk: titans_mac requires mixer.chunk = mixer.segment ({}), found {}", x.segment, x.chunk);
}

std::vector<ParameterShape> shapes_titans(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
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
  MixerConfig& x = m.mixer;
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
  const MixerConfig& x = m.mixer;
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

// `keys` lists the keys of the section [mixer] that only this variant of Titans has; the function adds the keys that
// all four variants share.
MixerKind titans_kind(MixerType type, const char* architecture, decltype(MixerKind::make) make, bool attends,
                      std::vector<const char*> keys) {
  keys.insert(keys.end(), {"conv_size", "memory_depth", "memory_expansion", "memory_norm"});
  return {.type = type,
          .model_type = name(type),
          .architecture = architecture,
          .window = attends,
          .keys = std::move(keys),
          .make = make,
          .infer_sizes = infer_titans_sizes,
          .check = check_titans,
          .shapes = shapes_titans,
          .read = read_titans,
          .write = write_titans};
}

}  // namespace

const MixerKind kTitansLmm =
    titans_kind(MixerType::titans_lmm, "TitansLMMForCausalLM", make_mixer_as<TitansLmm>, false, {"gate"});
const MixerKind kTitansMac =
    titans_kind(MixerType::titans_mac, "TitansMACForCausalLM", make_titans_mac, true, {"persistent", "segment"});
const MixerKind kTitansMag =
    titans_kind(MixerType::titans_mag, "TitansMAGForCausalLM", make_mixer_as<TitansMag>, true, {"persistent"});
const MixerKind kTitansMal =
    titans_kind(MixerType::titans_mal, "TitansMALForCausalLM", make_mixer_as<TitansMal>, true, {"persistent", "gate"});

}  // namespace lazy
