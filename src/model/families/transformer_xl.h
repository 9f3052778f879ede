// Transformer-XL (Dai et al. 2019): relative positions and a memory of what came before, LayerNorm after each addition,
// an adaptive vocabulary; TransfoXLLMHeadModel, which transformers no longer has.
#pragma once
#include "model/families/family.h"

namespace lazy {

extern const Family kTransformerXl;

}  // namespace lazy
