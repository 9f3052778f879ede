#include "attention/cuda/portable_forward_scored.cuh"

namespace lazy::kernels::cuda {
void portable_forward_scored_64(const Params& p, cudaStream_t stream) { portable::run_forward_scored<64>(p, stream); }
}  // namespace lazy::kernels::cuda
