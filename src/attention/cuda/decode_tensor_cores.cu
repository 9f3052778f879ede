// Instantiations of the decode kernels with tensor cores, for each head size in kHeadSizeLimits.
#include <algorithm>

#include "attention/cuda/decode_kernels.cuh"
#include "attention/cuda/launchers.h"

namespace lazy::kernels::cuda::decoding {

void decode_tensor_cores(const Params& p, cudaStream_t stream) {
  with_head_size_limit(std::max(p.head_dim, p.value_dim), [&](auto size) {
    with_half_type<__nv_bfloat16, __half>(p.dtype,
                                          [&](auto type) { launch<TensorCores<decltype(type), size>>(p, stream); });
  });
}

}  // namespace lazy::kernels::cuda::decoding
