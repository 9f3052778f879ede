// Intermediate results of the portable backward kernels: row states, and the fp32 sums of dQ with the kernel that
// converts them to d_q.
#pragma once
#include "attention/cuda/backward_sums.cuh"
#include "attention/cuda/portable_normalizers.cuh"

namespace lazy::kernels::cuda::portable {

// Returns the state of a row in p.row_state. It consists of four floats (anchor, factor, center, offset); the rows are
// in the order of lse. The anchor is the log-sum-exp or the threshold of the row. With g = the gradient of the weight,
// or 0 if the weight is zero:
//   exponential   f = exp2(score - anchor), weight = max(factor f + offset, 0), ds = f (g - center)
//   others        pair_weight(score - anchor, factor, offset) returns the weight and f, ds = f (g - center)
// In the exponential family, ds does not include `factor`, which is one except for the rounding error of the
// log-sum-exp. g - center does not amplify this error, because the center is a mean that was computed with the same f.
// In a row with one key, p is one for every score and ds is exactly zero. Such a row has an infinite anchor, so that f
// is zero, and one is added to its offset.
__device__ inline float4& row_state(const Params& p, const Tile& t, int head, int row) {
  return reinterpret_cast<float4*>(p.row_state)[row_index(p, t, head, row)];
}
struct StoreRowState {
  __device__ static void put(const Params& p, const Tile& t, int, int, int row, const BackwardRowState& s) {
    row_state(p, t, t.head, row) =
        make_float4(s.alone ? INFINITY : s.anchor, 1, s.center, s.offset + static_cast<float>(s.alone));
  }
};

// Returns the offset in p.dq_sum of 16 rows, the first of which is `row`. The sums of dQ are stored in blocks of 16
// rows x 8 dimensions with the layout of the accumulators, so that a warp adds whole cache lines. Every document begins
// with a new block of rows; one extra block per preceding document is reserved for this.
__device__ inline int64_t dq_blocks(const Params& p, const Tile& t, int head, int row, int D) {
  const int64_t rows = static_cast<int64_t>(t.batch) * p.heads + head;
  return (rows * tile_count(p, p.q_length, 16) + t.q_begin / 16 + t.document + row / 16) * 16 * D;
}

// Returns the index of a lane's element n (0 to 3) in a block of 16 rows x 8 dimensions. On sm_90 and later, the four
// elements are adjacent, and a lane adds them with one vector atomic.
__device__ inline int in_block(int lane, int n) {
#if __CUDA_ARCH__ >= 900
  return 4 * lane + n;
#else
  return 32 * n + lane;
#endif
}
__device__ inline void add_block(float* sums, int lane, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(sums + 4 * lane), make_float4(x[0], x[1], x[2], x[3]));
#else
#pragma unroll
  for (int n = 0; n < 4; ++n) atomicAdd(sums + in_block(lane, n), x[n]);
#endif
}

// Computes d_q = scale * sums, with one block per tile of 64 rows. A thread converts eight elements at a time.
template <typename T>
__global__ void __launch_bounds__(256) finish_dq(const Params p, int row_tiles) {
  const int chunks = p.head_dim / 8;
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / row_tiles;
  if (!locate(p, blockIdx.x % row_tiles, 64, false, t)) return;
  for (int n = threadIdx.x; n < 64 * chunks; n += 256) {
    const int row = t.first + n / chunks, chunk = n % chunks;
    if (row >= t.q_length) break;
    const float* const sums = p.dq_sum + dq_blocks(p, t, t.head, row, p.head_dim) + chunk * 128;
    uint32_t packed[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int lane = row % 8 * 4 + x, h = row % 16 / 8 * 2;
      packed[x] = pack<T>(p.scale * sums[in_block(lane, h)], p.scale * sums[in_block(lane, h + 1)]);
    }
    *reinterpret_cast<uint4*>(static_cast<T*>(p.d_q.data) + q_offset(p.d_q, t, t.head, row) + chunk * 8) =
        make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
}

}  // namespace lazy::kernels::cuda::portable
