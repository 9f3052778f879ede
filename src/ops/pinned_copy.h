// Copies between a GPU and pinned host memory with a kernel. A copy engine would be slower: each switch of a stream
// from kernels to a copy engine and back takes 5 us, which is significant between two decode steps.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// Copies `from` to `to` on the current stream. One tensor is on a GPU, and the other one is in pinned host memory. Both
// are contiguous and have the same dtype and size, a multiple of 8 bytes. Two CPU tensors are copied immediately.
// Throws c10::Error for other tensors.
void pinned_copy(const at::Tensor& to, const at::Tensor& from);

}  // namespace lazy::ops
