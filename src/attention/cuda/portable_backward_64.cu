#include "attention/cuda/portable_backward.cuh"

namespace lazy::kernels::cuda {
void portable_backward_64(const Params& p, int partial_step, cudaStream_t stream) {
  portable::run_backward<64, portable::Form::exponential>(p, partial_step, stream);
}
}  // namespace lazy::kernels::cuda
