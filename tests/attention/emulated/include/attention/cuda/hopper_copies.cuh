// Replaces src/attention/cuda/hopper_copies.cuh in the CPU emulator that runs CUDA kernels in tests. The functions do
// not use PTX. A copy completes immediately.
#pragma once
#include "attention/cuda/mma.cuh"

namespace lazy::kernels::cuda {

namespace emulation {

// Emulated mbarrier of 64 bits. arrivals: number of threads that must arrive in each phase. left: number of threads
// that have not arrived yet in the current phase. phase: parity of the current phase.
struct Barrier {
  int32_t bytes;  // expected bytes minus arrived bytes
  uint8_t arrivals, left, phase, unused;
  void end_phase_if_due() {
    if (left > 0 || bytes != 0) return;
    left = arrivals;
    phase ^= 1;
  }
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));
inline Barrier& at(uint64_t* barrier) { return *reinterpret_cast<Barrier*>(barrier); }

}  // namespace emulation

inline void barrier_init(uint64_t* barrier, int arrivals) {
  const auto count = static_cast<uint8_t>(arrivals);
  emulation::at(barrier) = {0, count, count, 0, 0};
}
inline void barrier_arrive(uint64_t* barrier) {
  --emulation::at(barrier).left;
  emulation::at(barrier).end_phase_if_due();
}
inline void barrier_expect(uint64_t* barrier, int bytes) {
  emulation::at(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
inline void barrier_arrive_after_copies(uint64_t* barrier) {
  emulated::commit_copies();
  emulated::wait_for_copies(0);
  barrier_arrive(barrier);
}
inline void barrier_wait(uint64_t* barrier, int parity) {
  while (emulation::at(barrier).phase == parity) emulated::let_others_run();
}
inline void fence_barriers() {}
inline void copy_bytes(void* to, const void* from, int bytes, uint64_t* barrier) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) std::abort();
  std::memcpy(to, from, static_cast<size_t>(bytes));
  emulation::at(barrier).bytes -= bytes;
  emulation::at(barrier).end_phase_if_due();
}
inline void prefetch_bytes(const void*, int) {}

}  // namespace lazy::kernels::cuda
