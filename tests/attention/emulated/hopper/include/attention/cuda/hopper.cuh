// src/attention/cuda/hopper.cuh without PTX, for the emulator, as far as src/ops uses it.
#pragma once
#include "attention/cuda/mma.cuh"

namespace lazy::kernels::cuda {

struct EmulatedBarrier {
  int16_t arrivals, left;  // of a phase
  uint32_t bytes_phase;    // bytes that are still expected, times 2; the phase. Bytes may land before they are expected
  void check() {
    if (left == 0 && bytes_phase / 2 == 0) bytes_phase ^= 1, left = arrivals;
  }
};
static_assert(sizeof(EmulatedBarrier) == sizeof(uint64_t));
inline EmulatedBarrier& emulated_barrier(uint64_t* barrier) { return *reinterpret_cast<EmulatedBarrier*>(barrier); }

inline void barrier_init(uint64_t* barrier, int arrivals) {
  emulated_barrier(barrier) = {static_cast<int16_t>(arrivals), static_cast<int16_t>(arrivals), 0};
}
inline void fence_barriers() {}
inline void barrier_expect(uint64_t* barrier, int bytes) {
  EmulatedBarrier& b = emulated_barrier(barrier);
  b.bytes_phase += 2 * static_cast<uint32_t>(bytes);
  --b.left;
  b.check();
}
inline void barrier_arrive(uint64_t* barrier) { barrier_expect(barrier, 0); }
inline void barrier_arrive_after_copies(uint64_t* barrier) {
  emulated::commit_copies();
  emulated::wait_for_copies(0);
  barrier_arrive(barrier);
}
inline void barrier_wait(uint64_t* barrier, int parity) {
  emulated::wait_until([=] { return (emulated_barrier(barrier).bytes_phase & 1) != static_cast<uint32_t>(parity); });
}

template <int STAGES>
struct Pipeline {
  uint64_t full[STAGES], empty[STAGES];
  void init(int consumers, int producers = 1) {
    for (int n = 0; n < STAGES; ++n) {
      barrier_init(&full[n], producers);
      barrier_init(&empty[n], consumers);
    }
  }
  void wait_full(int n) { barrier_wait(&full[n % STAGES], n / STAGES % 2); }
  void wait_empty(int n) { barrier_wait(&empty[n % STAGES], (n / STAGES % 2) ^ 1); }
};

inline void copy_bytes(void* to, const void* from, int bytes, uint64_t* barrier) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) std::abort();
  std::memcpy(to, from, static_cast<size_t>(bytes));
  EmulatedBarrier& b = emulated_barrier(barrier);
  b.bytes_phase -= 2 * static_cast<uint32_t>(bytes);
  b.check();
}
inline void prefetch_bytes(const void*, int) {}

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int pending>
void wgmma_wait() {}
template <int A>
void fence_registers(float (&)[A]) {}

// The address, and both distances in units of 16 bytes.
inline uint64_t core_descriptor(uint32_t address, uint32_t inner, uint32_t outer) {
  return uint64_t{address} | uint64_t{inner >> 4} << 32 | uint64_t{outer >> 4} << 48;
}
// B by core_descriptor.
template <typename T, int TRANSPOSED, int A>
void wgmma(float (&c)[A], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  static_assert(!TRANSPOSED);
  const auto address = static_cast<uint32_t>(b), inner = static_cast<uint32_t>(b >> 32 & 0xFFFF) << 4,
             outer = static_cast<uint32_t>(b >> 48) << 4;
  for (int n = 0; n < A / 4; ++n) {
    float sum[4];
    for (int e = 0; e < 4; ++e) sum[e] = accumulate ? c[4 * n + e] : 0;
    uint32_t x[2];
    for (uint32_t i = 0; i < 2; ++i) {
      std::memcpy(&x[i],
                  at_address(address + static_cast<uint32_t>(n) * outer + i * inner +
                             static_cast<uint32_t>(emulated::lane()) * 4),
                  4);
    }
    mma<T>(sum, a, x[0], x[1]);
    for (int e = 0; e < 4; ++e) c[4 * n + e] = sum[e];
  }
}

}  // namespace lazy::kernels::cuda
