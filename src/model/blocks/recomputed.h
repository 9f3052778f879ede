// Activation checkpointing (Chen et al. 2016, arXiv 1604.06174): a part of a model keeps its inputs only, and computes
// the rest again in the backward pass.
#pragma once
#include <functional>

#include "model/blocks/decoder_block.h"

namespace lazy {

// body(stream), whose results have the gradients that they would have without. `body` lives as long as the graph; what
// it refers to must live until the backward pass.
Stream recomputed(const Stream& stream, std::function<void(Stream&)> body);

}  // namespace lazy
