// PTX instructions of the decode-step kernels: access to 64-bit words in the L2 cache (fused_decode_layers.cu), and a
// barrier for a subset of the threads of a block.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace lazy::ops::cuda::step {

__device__ inline void put_word(uint64_t* to, uint64_t x) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}
__device__ inline void put_words(uint64_t* to, uint64_t x, uint64_t y) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(x), "l"(y) : "memory");
}
__device__ inline void get_words(const uint64_t* from, uint64_t (&x)[1]) {
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(x[0]) : "l"(from) : "memory");
}
__device__ inline void get_words(const uint64_t* from, uint64_t (&x)[2]) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(x[0]), "=l"(x[1]) : "l"(from) : "memory");
}
// Called between two polls of a word. Does nothing on a GPU; the CPU emulator of the tests replaces it and runs other
// threads.
__device__ inline void let_others_write() {}

// Barrier of THREADS threads of the block. All of them must call it at the same place in the program. Some threads may
// call arrive_threads instead, which does not wait.
template <int THREADS>
__device__ void named_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}
template <int THREADS>
__device__ void arrive_threads() {
  asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
}

}  // namespace lazy::ops::cuda::step
