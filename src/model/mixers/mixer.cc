#include "model/mixers/mixer.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/mixers/attention.h"
#include "model/mixers/delta_net.h"
#include "model/mixers/delta_net_kind.h"
#include "model/mixers/kinds.h"
#include "model/mixers/mamba2.h"
#include "model/mixers/mamba2_kind.h"
#include "model/mixers/retnet.h"
#include "model/mixers/retnet_kind.h"
#include "model/mixers/titans_kind.h"
#include "model/mixers/titans_lmm.h"
#include "model/mixers/titans_mac.h"
#include "model/mixers/titans_mag.h"
#include "model/mixers/titans_mal.h"
#include "model/mixers/ttt.h"
#include "model/mixers/ttt_kind.h"

namespace lazy {

bool Mixer::init_parameter(const std::string&, at::Tensor& fresh, const ModelConfig& config,
                           at::Generator& generator) const {
  if (fresh.dim() < 2) return false;
  fresh.normal_(0, config.init_std, generator);
  return true;
}

std::unique_ptr<Mixer> make_mixer(const ModelConfig& config, int64_t layer, at::Device device) {
  const std::string name = config.mixer_of(layer);
  if (name == "attention") return std::make_unique<AttentionMixer>(config, layer, device);
  if (name == kRetNet.name) return std::make_unique<RetNetMixer>(config, device);
  if (name == kMamba2.name) return std::make_unique<Mamba2Mixer>(config, device);
  if (name == kDeltaNet.name || name == kGatedDeltaNet.name) return std::make_unique<DeltaNetMixer>(config, device);
  if (name == kTttLinear.name || name == kTttMlp.name) return std::make_unique<TttMixer>(config, device);
  if (name == kTitansLmm.name) return std::make_unique<TitansLmm>(config, layer, device);
  if (name == kTitansMac.name) return std::make_unique<TitansMac>(config, layer, device);
  if (name == kTitansMag.name) return std::make_unique<TitansMag>(config, layer, device);
  if (name == kTitansMal.name) return std::make_unique<TitansMal>(config, layer, device);
  fail("model", "mixer: expected one of this program's, found '{}'", name);
}

}  // namespace lazy
