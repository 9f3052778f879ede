// Replaces the Hopper kernels, whose instructions the emulator does not support. The emulated GPU is an A100.
#include <stdexcept>

#include "attention/cuda/launchers.h"
#include "ops/cuda/step.h"

namespace lazy::kernels::cuda {

ForwardLauncher hopper_forward(NormalizerFamily, int64_t) { return nullptr; }
BackwardLauncher hopper_backward(NormalizerFamily, int64_t) { return nullptr; }
bool fits_single_pass(const Params&) { return false; }
void hopper_forward_single_pass(const Params&, cudaStream_t) {
  throw std::logic_error("the emulator does not support the Hopper kernels");
}

}  // namespace lazy::kernels::cuda

namespace lazy::ops::cuda {

bool skinny_gemm_hopper(const SkinnyGemm&, cudaStream_t) { return false; }

}  // namespace lazy::ops::cuda
