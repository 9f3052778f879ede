#include "attention/cuda/portable_forward.cuh"

namespace lazy::kernels::cuda {
void portable_forward_128(const Params& p, cudaStream_t stream) { portable::run_forward<128>(p, stream); }
}  // namespace lazy::kernels::cuda
