#include "attention/cuda/hopper_forward_single_pass.cuh"

namespace lazy::kernels::cuda {

bool hopper_keeps(const Params& p) {
  using namespace hopper::kept;
  return p.head_dim == D && p.normalizer == Normalizer::elastic && p.k_length <= TILES * N;
}

void hopper_forward_single_pass(const Params& p, cudaStream_t stream) {
  using namespace hopper::kept;
  if (p.dtype == DType::bf16)
    return p.stats ? launch<__nv_bfloat16, true>(p, stream) : launch<__nv_bfloat16, false>(p, stream);
  p.stats ? launch<__half, true>(p, stream) : launch<__half, false>(p, stream);
}

}  // namespace lazy::kernels::cuda
