// TTT-Linear and TTT-MLP (arXiv 2407.04620). Parameter names and the fields of config.json are as in ttt-lm-pytorch.
#pragma once
#include "model/mixers/registry.h"

namespace lazy {

extern const MixerKind kTttLinear, kTttMlp;

}  // namespace lazy
