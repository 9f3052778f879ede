#include "attention/cuda/hopper_forward.cuh"

namespace lazy::kernels::cuda {
void hopper_forward_64(const Params& p, cudaStream_t stream) { hopper::run_forward<64>(p, stream); }
}  // namespace lazy::kernels::cuda
