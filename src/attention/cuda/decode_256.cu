#include "attention/cuda/decode_launch.cuh"
#include "attention/cuda/decode_products.cuh"

namespace lazy::kernels::cuda::decoding {

void decode_256(const Params& p, cudaStream_t stream) {
  p.dtype == DType::bf16 ? launch<TensorCores<__nv_bfloat16, 256>>(p, stream)
                         : launch<TensorCores<__half, 256>>(p, stream);
}

}  // namespace lazy::kernels::cuda::decoding
