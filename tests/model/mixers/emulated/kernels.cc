// Registers the fast-weights kernels, run by the CPU emulator of CUDA kernels, as kernels for CPU tensors.
#include "attention/cuda/params.h"
#include "ops/cuda/fast_weights.h"
#include "ops/fast_weights.h"

namespace lazy::kernels::cuda {

void check(cudaError_t, const char*) {}  // never called: if a launch fails, the emulator terminates the program

}  // namespace lazy::kernels::cuda

namespace lazy::ops {
namespace {

template <auto kernels, typename Problem>
void run(const Problem& p) {
  kernels(p, nullptr);
}

const bool announced = [] {
  set_fast_weights_kernels(c10::DeviceType::CPU, {.serves = cuda::serves_fast_weights,
                                                  .kept_bytes = cuda::fast_weights_kept_bytes,
                                                  .forward = run<cuda::fast_weights_forward>,
                                                  .backward = run<cuda::fast_weights_backward>,
                                                  .factors = run<cuda::memory_factors>,
                                                  .factors_backward = run<cuda::memory_factors_backward>,
                                                  .tokens = run<cuda::memory_tokens>,
                                                  .tokens_backward = run<cuda::memory_tokens_backward>,
                                                  .outputs = run<cuda::memory_outputs>,
                                                  .outputs_backward = run<cuda::memory_outputs_backward>,
                                                  .serves_ttt = cuda::serves_ttt,
                                                  .ttt_forward = run<cuda::ttt_forward>,
                                                  .ttt_backward = run<cuda::ttt_backward>,
                                                  .serves_ttt_norm = cuda::serves_ttt_norm,
                                                  .ttt_norm_forward = run<cuda::ttt_norm_forward>,
                                                  .ttt_norm_backward = run<cuda::ttt_norm_backward>});
  return true;
}();

}  // namespace
}  // namespace lazy::ops
