// Launches of the portable backward: rows, keys, then the fp32 sums of dQ become d_q.
#include "attention/cuda/launchers.h"
#include "attention/cuda/portable_backward_keys.cuh"
#include "attention/cuda/portable_backward_rows.cuh"

namespace lazy::kernels::cuda {

namespace portable {

// d_q = scale * sums, eight elements a thread.
template <typename T>
__global__ void finish_dq(const Params p) {
  const int chunks = p.head_dim / 8;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
  if (n >= rows * chunks) return;
  const int64_t row = n / chunks, token = row % p.q_length, head = row / p.q_length % p.heads;
  const int64_t batch = row / p.q_length / p.heads;
  const float4* from = reinterpret_cast<const float4*>(p.dq_sum + n * 8);
  const float4 x = from[0], y = from[1];
  uint4 packed{pack<T>(p.scale * x.x, p.scale * x.y), pack<T>(p.scale * x.z, p.scale * x.w),
               pack<T>(p.scale * y.x, p.scale * y.y), pack<T>(p.scale * y.z, p.scale * y.w)};
  *reinterpret_cast<uint4*>(static_cast<T*>(p.d_q.data) + batch * p.d_q.batch + token * p.d_q.token +
                            head * p.d_q.head + n % chunks * 8) = packed;
}

template <typename T, int D, NormalizerFamily F>
void launch_backward(const Params& p, int partial_step, cudaStream_t stream) {
  using R = BackwardRowsShape<D>;
  using K = BackwardKeysShape<D>;
  const int row_tiles = tile_count(p, p.q_length, R::M), key_tiles = tile_count(p, p.k_length, K::N);
  const size_t row_bytes = RowSweep<T, D, R>::bytes + R::M * D * 2;
  const size_t key_bytes = K::bytes + (p.bias_slabs ? p.bias_window * 4 : 0);
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
  if (p.dq_sum) check(cudaMemsetAsync(p.dq_sum, 0, rows * D * 4, stream), "to clear the sums of d_q");
  launch("the portable backward, rows", backward_rows<T, D, F>, dim3(row_tiles * p.batch, p.heads), R::threads,
         row_bytes, stream, p, row_tiles, partial_step);
  launch("the portable backward, keys", backward_keys<T, D, F>, dim3(key_tiles * p.batch, p.kv_heads), K::threads,
         key_bytes, stream, p, key_tiles, partial_step);
  if (p.dq_sum) {
    launch("the portable backward, d_q", finish_dq<T>, static_cast<unsigned>((rows * (D / 8) + 255) / 256), 256, 0,
           stream, p);
  }
}

template <NormalizerFamily F, int D>
struct PortableBackward {
  static void launch(const Params& p, int partial_step, cudaStream_t stream) {
    with_half_type<__nv_bfloat16, __half>(
        p.dtype, [&](auto type) { launch_backward<decltype(type), D, F>(p, partial_step, stream); });
  }
};

}  // namespace portable

BackwardLauncher portable_backward(NormalizerFamily family, int64_t head_size) {
  return find_launcher<CudaKernel::portable, BackwardLauncher, portable::PortableBackward>(family, head_size);
}

}  // namespace lazy::kernels::cuda
