// Copies between a GPU and pinned host memory. A thread copies 8 bytes at a time; the lanes of a warp copy adjacent
// words.
#include <algorithm>

#include "attention/cuda/decode_params.h"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda {

namespace {

// kAtOnce: number of words that a thread loads before it stores the first word
constexpr int kThreads = 256, kAtOnce = 4;

__global__ void __launch_bounds__(kThreads) copy(const __grid_constant__ PinnedCopy p) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t first = blockIdx.x * kThreads + threadIdx.x; first < p.words; first += kAtOnce * step) {
    uint64_t words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * step < p.words) words[i] = __ldcg(p.from + first + i * step);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * step < p.words) p.to[first + i * step] = words[i];
    }
  }
}

}  // namespace

void pinned_copy(const PinnedCopy& p, cudaStream_t stream) {
  if (p.words == 0) return;
  constexpr int64_t kMaxBlocks = 64;  // this number of blocks saturates the bus
  const int64_t blocks = std::min((p.words + kThreads * kAtOnce - 1) / (kThreads * kAtOnce), kMaxBlocks);
  kernels::cuda::decoding::start<copy>(p, static_cast<unsigned>(blocks), kThreads, 0, false, stream);
}

}  // namespace lazy::ops::cuda
