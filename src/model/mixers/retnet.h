// RetNet (multi-scale retention, arXiv 2307.08621). Parameter names and the fields of config.json are as in
// flash-linear-attention.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kRetNet;

}  // namespace lazy
