// The emulator's kernels of fast weights, for tensors of the CPU.
#include "ops/cuda/fast_weights.h"
#include "ops/fast_weights.h"

namespace lazy::ops {
namespace {

const bool announced = [] {
  set_fast_weights_kernels(c10::DeviceType::CPU,
                           {.serves = cuda::serves_fast_weights,
                            .forward = [](const FastWeightsProblem& p) { cuda::fast_weights_forward(p, nullptr); },
                            .backward = [](const FastWeightsProblem& p) { cuda::fast_weights_backward(p, nullptr); },
                            .serves_ttt = cuda::serves_ttt,
                            .ttt_forward = [](const TttProblem& p) { cuda::ttt_forward(p, nullptr); },
                            .ttt_backward = [](const TttProblem& p) { cuda::ttt_backward(p, nullptr); },
                            .serves_ttt_norm = cuda::serves_ttt_norm,
                            .ttt_norm_forward = [](const TttNorm& p) { cuda::ttt_norm_forward(p, nullptr); },
                            .ttt_norm_backward = [](const TttNorm& p) { cuda::ttt_norm_backward(p, nullptr); }});
  return true;
}();

}  // namespace
}  // namespace lazy::ops
