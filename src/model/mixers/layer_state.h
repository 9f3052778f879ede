// A recurrent mixer's place in the cache of generation.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace lazy {

struct KVCache;

// The layer's list in cache.states, empty before the first token. Put new tensors there, never change those in it.
std::vector<at::Tensor>& layer_state(KVCache& cache, int64_t layer);

}  // namespace lazy
