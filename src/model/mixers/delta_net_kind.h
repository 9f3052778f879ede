// DeltaNet (arXiv 2406.06484) and Gated DeltaNet (arXiv 2412.06464) in the table of mixers; names and config.json as in
// FLA.
#pragma once
#include "model/mixers/kinds.h"

namespace lazy {

extern const MixerKind kDeltaNet, kGatedDeltaNet;

}  // namespace lazy
