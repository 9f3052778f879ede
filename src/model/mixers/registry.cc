#include "model/mixers/registry.h"

#include <algorithm>

#include "core/error.h"
#include "model/config.h"
#include "model/mixers/delta_net.h"
#include "model/mixers/mamba2.h"
#include "model/mixers/retnet.h"
#include "model/mixers/titans/titans.h"
#include "model/mixers/ttt.h"

namespace lazy {

const std::vector<const MixerKind*>& mixer_kinds() {
  static const std::vector<const MixerKind*> all = {&kRetNet, &kMamba2,    &kDeltaNet,  &kGatedDeltaNet, &kTttLinear,
                                                    &kTttMlp, &kTitansLmm, &kTitansMac, &kTitansMag,     &kTitansMal};
  return all;
}

const MixerKind* find_mixer(const std::string& name) {
  for (const MixerKind* kind : mixer_kinds()) {
    if (lazy::name(kind->type) == name) return kind;
  }
  return nullptr;
}

const MixerKind* find_mixer_type(const std::string& type) {
  for (const MixerKind* kind : mixer_kinds()) {
    if (kind->model_type == type) return kind;
  }
  return nullptr;
}

void use_mixer(ModelConfig& m, const MixerKind& kind) {
  m.mlp.enabled = kind.mlp;
  m.mlp.hidden_ratio = kind.hidden_ratio;
  m.norm.eps = kind.norm_eps;
  std::vector<int64_t> attention_layers = std::move(m.mixer.attention_layers);
  m.mixer = kind.defaults;
  m.mixer.type = kind.type;
  m.mixer.attention_layers = std::move(attention_layers);
}

void infer_mixer_sizes(ModelConfig& m) {
  check_range(m.hidden_size, "hidden_size", 1, int64_t{1} << 20);
  check_range(m.mixer.heads, "mixer.heads", 0, 1 << 14);
  check_range(m.mixer.key_dim, "mixer.key_dim", 0, 1 << 14);
  check_range(m.mixer.value_dim, "mixer.value_dim", 0, 1 << 14);
  mixer_kind(m).infer_sizes(m);
}

int64_t even_key_dim(const ModelConfig& m, int64_t above, int64_t below) {
  const int64_t width = above * m.hidden_size, parts = below * m.mixer.heads;
  if (width % parts != 0) {
    fail("model",
         "mixer.heads: expected a divisor of {} (derived from hidden_size {}), or an explicit mixer.key_dim, found {}",
         width % below == 0 ? width / below : width, m.hidden_size, m.mixer.heads);
  }
  return width / parts;
}

void infer_square_heads_sizes(ModelConfig& m) {
  MixerConfig& x = m.mixer;
  if (x.heads == 0) x.heads = std::max<int64_t>(1, m.hidden_size / 64);
  if (x.key_dim == 0) x.key_dim = m.hidden_size / x.heads;
  if (x.value_dim == 0) x.value_dim = x.key_dim;
}

void check_square_heads(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  if (x.heads * x.key_dim != m.hidden_size) {
    fail("model", "mixer.heads: expected heads * key_dim = hidden_size ({}), found heads {} and key_dim {}",
         m.hidden_size, x.heads, x.key_dim);
  }
  if (x.value_dim != x.key_dim)
    fail("model", "mixer.value_dim: expected the value of key_dim ({}), found {}", x.key_dim, x.value_dim);
}

const MixerKind& mixer_kind(const ModelConfig& config) {
  for (const MixerKind* kind : mixer_kinds()) {
    if (kind->type == config.mixer.type) return *kind;
  }
  fail("model", "mixer: '{}' is not implemented", name(config.mixer.type));
}

}  // namespace lazy
