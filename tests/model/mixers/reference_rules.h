// Recurrences by their definition, token by token: the neural memory of Titans, TTT and the short convolution. The
// chunked forms are compared with these.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "model/mixers/recurrence/short_convolution.h"
#include "model/mixers/titans/neural_memory.h"
#include "model/mixers/ttt_rule.h"

namespace lazy {

// As memory_chunks and ttt_chunks, with gradients by autograd.
std::tuple<at::Tensor, MemoryState> reference_memory(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                     const at::Tensor& cu_seqlens = {});
std::tuple<at::Tensor, TttState> reference_ttt(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens = {});

// As recurrence::short_convolution.
recurrence::Convolution reference_short_convolution(const recurrence::ConvolutionInputs& in);

}  // namespace lazy
