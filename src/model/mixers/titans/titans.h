// The four variants of Titans (arXiv 2501.00663): LMM (only the neural memory), MAC (memory as context of attention),
// MAG (memory as a gate) and MAL (memory as a layer). No checkpoints of Titans have been published, so the parameter
// names are specific to this project.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kTitansLmm, kTitansMac, kTitansMag, kTitansMal;

}  // namespace lazy
