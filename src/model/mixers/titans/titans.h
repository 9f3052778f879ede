// Titans (arXiv 2501.00663): the neural memory alone (LMM), as context of attention (MAC), as a gate (MAG), as a layer
// (MAL). There are no published checkpoints: parameter names are this project's.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kTitansLmm, kTitansMac, kTitansMag, kTitansMal;

}  // namespace lazy
