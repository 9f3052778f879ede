// RetNet (arXiv 2307.08621) in the table of mixers; names and config.json as in FLA.
#pragma once
#include "model/mixers/kinds.h"

namespace lazy {

extern const MixerKind kRetNet;

}  // namespace lazy
