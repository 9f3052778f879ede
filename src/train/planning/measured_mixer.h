// What layers of other mixers than attention keep for the backward pass. It is not written down mixer by mixer: one
// layer is run on a short text, on the CPU, and counted.
#pragma once
#include "model/config.h"

namespace lazy::train {

struct MixerMemory {
  double layer = 0;    // bytes a token and layer that the forward pass keeps: norms, residuals and MLP included
  double fixed = 0;    // bytes a layer besides, however many tokens: weights laid side by side
  double passing = 0;  // bytes a token that come and go in the layer's backward pass
};

// Of the mixer of a model that does not attend alone. Once measured, known. Texts are no longer than seq_len.
MixerMemory measured_mixer(const ModelConfig& model, int64_t seq_len, bool bf16);

}  // namespace lazy::train
