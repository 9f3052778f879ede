#include "attention/cuda/decode_launch.cuh"
#include "attention/cuda/decode_plain.cuh"

namespace lazy::kernels::cuda::decoding {

void decode_plain(const Params& p, cudaStream_t stream) { launch<Plain>(p, stream); }

}  // namespace lazy::kernels::cuda::decoding
