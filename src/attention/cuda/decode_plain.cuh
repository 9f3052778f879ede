// Decode's two products in fp32 arithmetic, a warp at a time: every type, head size and stride. Lane n holds dimensions
// n, n + 32, ...
#pragma once
#include "attention/cuda/decode_products.cuh"

namespace lazy::kernels::cuda::decoding {

struct Plain {
  static constexpr int kBlocks = 3;
  static constexpr int kSteps = 8;          // of 32 dimensions

  // The lane's elements of a row of K, V or q; zeros where there is none.
  static __device__ void load_row(const Params& p, const Tensor& x, bool there, int64_t at, int dims, float (&to)[kSteps]) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int d = static_cast<int>(threadIdx.x) % 32 + 32 * i;
      to[i] = there && d < dims ? load(x.data, at + d * x.dim, p.dtype) : 0;
    }
  }

  static __device__ void scores(const Params& p, const RowTile& t, const int64_t* offsets, int count, float* dots,
                                int stride) {
    constexpr int kKeys = 4;                // at a time; kPad is a multiple
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < count; n += kKeys) {
      float k[kKeys][kSteps];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const int64_t at = offsets[n + j];
        load_row(p, p.k, present(at), at + t.kv_head * p.k.head, p.head_dim, k[j]);
      }
      for (int r = 0; r < t.rows; ++r) {
        float q[kSteps];
        load_row(p, p.q, true, t.batch * p.q.batch + t.query(p, r) * p.q.token + t.head(p, r) * p.q.head, p.head_dim, q);
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          float dot = 0;
#pragma unroll
          for (int i = 0; i < kSteps; ++i) dot += q[i] * k[j][i];
          dot = warp_sum(dot);
          if (lane == j) dots[r * stride + n + j] = dot;
        }
      }
    }
  }

  struct Sums {
    float sum[kRows][kSteps] = {};

    __device__ void add(const Params& p, const RowTile& t, const AliveList& list, int count) {
      constexpr int kKeys = 2;
      for (int n = 0; n < count; n += kKeys) {  // the list goes on to a multiple of kPad
        float v[kKeys][kSteps];
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          const int64_t at = list.at[n + j];
          load_row(p, p.v, present(at), at + t.kv_head * p.v.head, p.value_dim, v[j]);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r >= t.rows) break;
#pragma unroll
          for (int j = 0; j < kKeys; ++j) {
            const float weight = list.weight[r * list.stride + n + j];
#pragma unroll
            for (int i = 0; i < kSteps; ++i) sum[r][i] += weight * v[j][i];
          }
        }
      }
    }

    __device__ void store(const Params& p, const RowTile& t, float* to) const {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const int d = static_cast<int>(threadIdx.x) % 32 + 32 * i;
          if (r < t.rows && d < p.value_dim) to[r * p.value_dim + d] = sum[r][i];
        }
      }
    }
  };
};

}  // namespace lazy::kernels::cuda::decoding
