// GPT-2 (Radford et al. 2019): LayerNorm, learned positions, biases everywhere, an MLP with GELU; GPT2LMHeadModel.
#pragma once
#include "model/families/family.h"

namespace lazy {

extern const Family kGpt2;

}  // namespace lazy
