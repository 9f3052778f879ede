// RetNet (multi-scale retention, arXiv 2307.08621). Parameter names and config.json as in flash-linear-attention.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kRetNet;

}  // namespace lazy
