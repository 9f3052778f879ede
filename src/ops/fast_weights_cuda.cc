// Announces the kernels of fast weights on NVIDIA GPUs.
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/fast_weights.h"
#include "ops/fast_weights.h"

namespace lazy::ops {

namespace {

const bool announced = [] {
  set_fast_weights_kernels(
      c10::DeviceType::CUDA,
      {.serves = cuda::serves_fast_weights,
       .forward = [](const FastWeightsProblem& p) { cuda::fast_weights_forward(p, c10::cuda::getCurrentCUDAStream()); },
       .backward =
           [](const FastWeightsProblem& p) { cuda::fast_weights_backward(p, c10::cuda::getCurrentCUDAStream()); },
       .serves_ttt = cuda::serves_ttt,
       .ttt_forward = [](const TttProblem& p) { cuda::ttt_forward(p, c10::cuda::getCurrentCUDAStream()); },
       .ttt_backward = [](const TttProblem& p) { cuda::ttt_backward(p, c10::cuda::getCurrentCUDAStream()); },
       .serves_ttt_norm = cuda::serves_ttt_norm,
       .ttt_norm_forward = [](const TttNorm& p) { cuda::ttt_norm_forward(p, c10::cuda::getCurrentCUDAStream()); },
       .ttt_norm_backward = [](const TttNorm& p) { cuda::ttt_norm_backward(p, c10::cuda::getCurrentCUDAStream()); }});
  return true;
}();

}  // namespace

}  // namespace lazy::ops
