// Titans (arXiv 2501.00663) in a list of mixers: the neural memory alone (LMM), as context of attention (MAC), as its
// gate (MAG), as the layer before it (MAL). No checkpoints of it are published: the names are ours.
#pragma once
#include "model/mixers/kinds.h"

namespace lazy {

extern const MixerKind kTitansLmm, kTitansMac, kTitansMag, kTitansMal;

}  // namespace lazy
