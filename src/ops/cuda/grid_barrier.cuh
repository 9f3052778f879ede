// A barrier of all blocks of a grid that runs at once.
#pragma once
#include <cstdint>
#include <cstdio>

#include "attention/cuda/decode_memory.cuh"

namespace lazy::ops::cuda {

// Its counter is never reset. All arrivals at a barrier add up to kStep, so the number of barriers that grids have gone
// through is the counter in steps, whatever their sizes; it may overflow. All threads of a block call alike.
class GridBarrier {
 public:
  static constexpr unsigned kStep = 1 << 12, kMostBlocks = kStep;

  // `counter`: zero at first, of no other grid at the same time. `end`: in shared memory.
  __device__ GridBarrier(uint32_t* counter, uint32_t* end) : counter_(counter), end_(end) {
    if (threadIdx.x == 0) *end_ = kernels::cuda::decoding::load_acquired(counter) / kStep * kStep;
  }

  // What the block has written is seen by those who wait for all.
  __device__ void arrive() const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    *end_ += kStep;
    kernels::cuda::decoding::add_released(counter_, blockIdx.x == 0 ? kStep - gridDim.x + 1 : 1);
  }
  // For all to have arrived as often as this block.
  __device__ void wait() const {
    if (threadIdx.x == 0) {
      const uint32_t end = *end_;
      unsigned polls = 0;
      while (static_cast<int32_t>(kernels::cuda::decoding::load_acquired(counter_) - end) < 0) {
        if (++polls == kMostPolls) give_up();
      }
    }
    __syncthreads();
  }

 private:
  static constexpr unsigned kMostPolls = 1 << 22;  // some seconds

  static __device__ __noinline__ void give_up() {
    printf("lazy: block %u of %u waited too long for the others\n", blockIdx.x, gridDim.x);
    __trap();
  }

  uint32_t* counter_;
  uint32_t* end_;  // the counter once all have arrived
};

}  // namespace lazy::ops::cuda
