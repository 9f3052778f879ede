#pragma once
#include "attention/cuda/hopper_copies.cuh"

namespace lazy::kernels::cuda {

// Barriers of a ring buffer with STAGES stages, between a producer and its consumers. The n-th use of the buffer has
// the stage n % STAGES and the barrier phase n / STAGES % 2.
template <int STAGES>
struct Pipeline {
  uint64_t full[STAGES], empty[STAGES];
  __device__ void init(int consumers, int producers = 1) {
    for (int n = 0; n < STAGES; ++n) {
      barrier_init(&full[n], producers);
      barrier_init(&empty[n], consumers);
    }
  }
  __device__ void wait_full(int n) { barrier_wait(&full[n % STAGES], n / STAGES % 2); }
  __device__ void wait_empty(int n) { barrier_wait(&empty[n % STAGES], (n / STAGES % 2) ^ 1); }
};

}  // namespace lazy::kernels::cuda
