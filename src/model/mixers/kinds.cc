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

const MixerKind& mixer_kind(const ModelConfig& config) {
  const MixerKind* kind = find_mixer(config.mixer);
  if (!kind) fail("model", "mixer: expected one of this program's, found '{}'", config.mixer);
  return *kind;
}

}  // namespace lazy
