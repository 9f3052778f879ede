// Titans (arXiv 2501.00663): the neural memory alone (LMM), as context of attention (MAC), as a gate (MAG), and as a
// layer (MAL). No checkpoints of Titans have been published, so the parameter names are specific to this project.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kTitansLmm, kTitansMac, kTitansMag, kTitansMal;

}  // namespace lazy
