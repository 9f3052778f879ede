// DeltaNet (arXiv 2406.06484) and Gated DeltaNet (arXiv 2412.06464). Parameter names and the fields of config.json are
// as in flash-linear-attention.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kDeltaNet, kGatedDeltaNet;

}  // namespace lazy
