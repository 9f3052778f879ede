// BLOOM (Le Scao et al. 2022): LayerNorm, also of the embeddings, ALiBi, biases everywhere, an MLP with GELU;
// BloomForCausalLM.
#pragma once
#include "model/families/family.h"

namespace lazy {

extern const Family kBloom;

}  // namespace lazy
