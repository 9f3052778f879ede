// Copies between a GPU and pinned host memory as a kernel: a stream that goes from kernels to a copy engine and back
// loses 5 us each time, which counts between two decoding steps.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// `to` becomes `from`, queued on the current stream: one on a GPU, the other pinned, both contiguous, of one type and
// size, a multiple of 8 bytes. On a CPU a copy. Throws c10::Error for others.
void pinned_copy(const at::Tensor& to, const at::Tensor& from);

}  // namespace lazy::ops
