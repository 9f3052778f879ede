#include "attention/cuda/hopper_backward.cuh"

namespace lazy::kernels::cuda {
void hopper_backward_128(const Params& p, int partial_step, cudaStream_t stream) {
  hopper::run_backward<128>(p, partial_step, stream);
}
}  // namespace lazy::kernels::cuda
