#include "attention/cuda/portable_forward.cuh"

namespace lazy::kernels::cuda {
void portable_forward_256(const Params& p, cudaStream_t stream) { portable::run_forward<256>(p, stream); }
}  // namespace lazy::kernels::cuda
