// Mamba2 (SSD, arXiv 2405.21060). Parameter names and the fields of config.json are as in flash-linear-attention.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kMamba2;

// Returns the inner width, heads * head size. MixerConfig::value_dim is the head size, and key_dim is the state size N.
inline int64_t mamba2_inner(const MixerConfig& x) { return x.heads * x.value_dim; }
// Returns the number of channels of the short convolution, whose input is the concatenation of x, B and C.
inline int64_t mamba2_convolved(const MixerConfig& x) { return mamba2_inner(x) + 2 * x.groups * x.state_size; }

}  // namespace lazy
