// Replaces src/ops/cuda/step_ptx.cuh in the CPU emulator that runs CUDA kernels in tests. The functions do not use PTX.
#pragma once
#include <cuda_runtime.h>

#include <source_location>

namespace lazy::ops::cuda::step {

inline void put_word(uint64_t* to, uint64_t x) { *to = x; }
inline void put_words(uint64_t* to, uint64_t x, uint64_t y) { to[0] = x, to[1] = y; }
inline void get_words(const uint64_t* from, uint64_t (&x)[1]) { x[0] = *from; }
inline void get_words(const uint64_t* from, uint64_t (&x)[2]) { x[0] = from[0], x[1] = from[1]; }
inline void let_others_write() { emulated::let_others_run(); }
template <int THREADS>
void named_barrier(std::source_location place = std::source_location::current()) {
  emulated::named_barrier(THREADS, place);
}
template <int THREADS>
void arrive_threads() {
  emulated::arrive_threads(THREADS);
}

}  // namespace lazy::ops::cuda::step
