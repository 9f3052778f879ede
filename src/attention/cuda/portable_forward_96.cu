#include "attention/cuda/portable_forward.cuh"

namespace lazy::kernels::cuda {
void portable_forward_96(const Params& p, cudaStream_t stream) { portable::run_forward<96>(p, stream); }
}  // namespace lazy::kernels::cuda
