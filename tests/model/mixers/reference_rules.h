// Recurrences computed by their definition, token by token: the neural memory of Titans, TTT and the short convolution.
// Tests compare the chunkwise forms with them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "model/mixers/recurrence/short_convolution.h"
#include "model/mixers/titans/neural_memory.h"
#include "model/mixers/ttt_rule.h"

namespace lazy {

// These functions have the same interface as memory_chunks and ttt_chunks. Their gradients are computed by autograd.
std::tuple<at::Tensor, MemoryState> reference_memory(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                     const at::Tensor& cu_seqlens = {});
std::tuple<at::Tensor, TttState> reference_ttt(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens = {});

// This function has the same interface as recurrence::short_convolution.
recurrence::Convolution reference_short_convolution(const recurrence::ConvolutionInputs& in);

}  // namespace lazy
