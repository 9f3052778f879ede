// PTX of a step's kernels: words of 64 bits in the second-level cache (step_layers.cu), a barrier of some of a block's
// threads.
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
__device__ inline void let_others_write() {}  // between two reads of a word: for the emulator

// THREADS of the block meet, all at the same place of the program; some may arrive elsewhere, without waiting.
template <int THREADS>
__device__ void meet_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}
template <int THREADS>
__device__ void arrive_threads() {
  asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
}

}  // namespace lazy::ops::cuda::step
