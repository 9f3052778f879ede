// Replaces src/attention/cuda/decode_memory.cuh in the CPU emulator that runs CUDA kernels in tests. The functions do
// not use PTX.
#pragma once
#include "attention/cuda/mma.cuh"

namespace lazy::kernels::cuda::decoding {

inline uint64_t read_once_policy() { return 0; }
inline uint4 load_once(const void* from, uint64_t) { return *static_cast<const uint4*>(from); }
inline void copy_once(uint32_t to, const void* from, bool there, uint64_t) { copy_async(to, from, there); }
inline void commit_copies() { emulated::commit_copies(); }
template <int LEFT>
void wait_for_copies() {
  emulated::wait_for_copies(LEFT);
}
inline uint4 load_shared(uint32_t from) { return *reinterpret_cast<const uint4*>(at_address(from)); }
inline uint32_t load_word(uint32_t from) { return *reinterpret_cast<const uint32_t*>(at_address(from)); }
inline void store_word(uint32_t to, uint32_t x) { *reinterpret_cast<uint32_t*>(at_address(to)) = x; }
inline void store_half(uint32_t to, uint32_t x) {
  *reinterpret_cast<uint16_t*>(at_address(to)) = static_cast<uint16_t>(x);
}
inline void wait_for_launcher() {}
inline void let_next_start() {}

}  // namespace lazy::kernels::cuda::decoding
