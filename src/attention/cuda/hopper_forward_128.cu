#include "attention/cuda/hopper_forward.cuh"

namespace lazy::kernels::cuda {
void hopper_forward_128(const Params& p, cudaStream_t stream) { hopper::run_forward<128>(p, stream); }
}  // namespace lazy::kernels::cuda
