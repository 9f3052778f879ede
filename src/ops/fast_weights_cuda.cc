// Registers the CUDA kernels of fast weights.
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/fast_weights.h"
#include "ops/fast_weights.h"

namespace lazy::ops {

namespace {

template <auto kernels, typename Problem>
void on_current_stream(const Problem& p) {
  kernels(p, c10::cuda::getCurrentCUDAStream());
}

const bool fast_weights_registered = [] {
  set_fast_weights_kernels(c10::DeviceType::CUDA, {.serves = cuda::serves_fast_weights,
                                                   .kept_bytes = cuda::fast_weights_kept_bytes,
                                                   .forward = on_current_stream<cuda::fast_weights_forward>,
                                                   .backward = on_current_stream<cuda::fast_weights_backward>,
                                                   .factors = on_current_stream<cuda::memory_factors>,
                                                   .factors_backward = on_current_stream<cuda::memory_factors_backward>,
                                                   .tokens = on_current_stream<cuda::memory_tokens>,
                                                   .tokens_backward = on_current_stream<cuda::memory_tokens_backward>,
                                                   .outputs = on_current_stream<cuda::memory_outputs>,
                                                   .outputs_backward = on_current_stream<cuda::memory_outputs_backward>,
                                                   .serves_ttt = cuda::serves_ttt,
                                                   .ttt_forward = on_current_stream<cuda::ttt_forward>,
                                                   .ttt_backward = on_current_stream<cuda::ttt_backward>,
                                                   .serves_ttt_norm = cuda::serves_ttt_norm,
                                                   .ttt_norm_forward = on_current_stream<cuda::ttt_norm_forward>,
                                                   .ttt_norm_backward = on_current_stream<cuda::ttt_norm_backward>});
  return true;
}();

}  // namespace

}  // namespace lazy::ops
