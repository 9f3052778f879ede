#include "model/mixers/kinds.h"

#include "core/error.h"
#include "model/mixers/delta_net_kind.h"
#include "model/mixers/mamba2_kind.h"
#include "model/mixers/retnet_kind.h"
#include "model/mixers/titans_kind.h"
#include "model/mixers/ttt_kind.h"

namespace lazy {

const std::vector<const MixerKind*>& mixer_kinds() {
  static const std::vector<const MixerKind*> all = {&kRetNet,    &kMamba2,    &kDeltaNet,  &kGatedDeltaNet, &kTttLinear,
                                                    &kTttMlp,    &kTitansLmm, &kTitansMac, &kTitansMag,     &kTitansMal};
  return all;
}

const MixerKind* find_mixer(const std::string& name) {
  for (const MixerKind* kind : mixer_kinds()) {
    if (kind->name == name) return kind;
  }
  return nullptr;
}

const MixerKind* find_mixer_type(const std::string& type) {
  for (const MixerKind* kind : mixer_kinds()) {
    if (kind->model_type == type) return kind;
  }
  return nullptr;
}

void complete_mixer(ModelConfig& m) {
  const auto check = [](int64_t value, const char* field, int64_t minimum, int64_t maximum) {
    if (value < minimum || value > maximum) fail("model", "{}: expected {} to {}, found {}", field, minimum, maximum, value);
  };
  check(m.hidden_size, "hidden_size", 1, int64_t{1} << 20);
  check(m.mix.heads, "mixer.heads", 0, 1 << 14);
  check(m.mix.key_dim, "mixer.key_dim", 0, 1 << 14);
  check(m.mix.value_dim, "mixer.value_dim", 0, 1 << 14);
  mixer_kind(m).complete(m);
}

int64_t even_key_dim(const ModelConfig& m, int64_t above, int64_t below) {
  const int64_t width = above * m.hidden_size, parts = below * m.mix.heads;
  if (width % parts != 0) {
    fail("model", "mixer.heads: expected a divisor of {} (of hidden_size {}) or an explicit mixer.key_dim, found {}",
         width % below == 0 ? width / below : width, m.hidden_size, m.mix.heads);
  }
  return width / parts;
}

const MixerKind& mixer_kind(const ModelConfig& config) {
  const MixerKind* kind = find_mixer(config.mixer);
  if (!kind) fail("model", "mixer: expected one of this program's, found '{}'", config.mixer);
  return *kind;
}

}  // namespace lazy
