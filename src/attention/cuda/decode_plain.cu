// The two matrix products of decode in fp32 arithmetic, for every data type, head size and stride. Each warp works
// independently. Lane n of a warp processes dimensions n, n + 32, n + 64 and so on.
#include "attention/cuda/decode_kernels.cuh"

namespace lazy::kernels::cuda::decoding {

struct Plain {
  static constexpr int kBlocks = 3;
  static constexpr int kRingBytes = 0;
  static constexpr bool kWholeTiles = false;
  static constexpr int kSteps = 8;  // number of steps over the head dimensions; a step covers 32 dimensions

  // Loads the lane's elements of a row of K, V or q. Elements beyond the end of the row are set to zero. If `there` is
  // false, the row does not exist, and all elements are set to zero.
  static __device__ void load_row(const Params& p, const Tensor& x, bool there, int64_t at, int dims,
                                  float (&to)[kSteps]) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int d = static_cast<int>(threadIdx.x) % 32 + 32 * i;
      to[i] = there && d < dims ? load(x.data, at + d * x.dim, p.dtype) : 0;
    }
  }

  // Computes dots[r * stride + n] = q_r . k_n for the rows r of the tile and the keys n < count. `offsets` has one
  // entry per key, padded to a multiple of kPad.
  static __device__ void scores(const Params& p, const RowTile& t, const int64_t* offsets, int count, float* dots,
                                int stride) {
    constexpr int kKeys = 4;  // keys per step; divides kPad
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
        load_row(p, p.q, true, t.batch * p.q.batch + t.query(p, r) * p.q.token + t.head(p, r) * p.q.head, p.head_dim,
                 q);
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

  // Converts the dot products of row r with the warp's keys to scores, stores the scores in global memory, and writes
  // their maximum and sum of exponentials to *part.
  static __device__ void finish_scores(const Params& p, const RowTile& t, int r, int begin, int count,
                                       const int64_t* offsets, float* dots, float2* part) {
    const int lane = threadIdx.x % 32;
    const RowView row = make_view(p, t, r);
    float* kept = score_at(p, t, r, begin);
    float largest = -INFINITY;
    for (int n = lane; n < count; n += 32) {
      const float dot = p.softcap ? capped(p.softcap, dots[n]) : dots[n];
      float s = finish_score(p, row, begin + n, dot, score_bias(p, row, begin + n));
      if (offsets[n] == kBadPage) s = NAN;
      kept[n * p.score_key] = s;
      if (begin + n < row.begin || begin + n >= row.end) s = -INFINITY;
      dots[n] = s;
      largest = fmaxf(largest, s);
    }
    largest = warp_max(largest);
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = 0;
    for (int n = lane; n < count; n += 32) sum += expf(dots[n] - base);
    sum = warp_sum(sum);
    if (lane == 0) *part = {largest, sum};
  }

  // Computes and stores the scores of the keys [begin, begin + count), like TensorCores::key_part, but without a ring
  // buffer in shared memory.
  template <PageAlignment>
  static __device__ void key_part(const Params& p, const RowTile& t, int begin, int count, char* memory, float2* part) {
    const KeyMemory m(p, memory, 0);
    for (int n = threadIdx.x % 32; n < (count + kPad - 1) / kPad * kPad; n += 32) {
      m.offsets[n] = n < count ? key_offset(p, p.k, t.batch, begin + n) : kAbsent;
    }
    __syncwarp();
    scores(p, t, m.offsets, count, m.dots, m.stride);
    __syncwarp();
    for (int r = 0; r < t.rows; ++r) {
      finish_scores(p, t, r, begin, count, m.offsets, m.dots + r * m.stride,
                    part + static_cast<int64_t>(r) * p.max_parts);
    }
  }

  struct Sums {
    static constexpr int kStages = 0, kCopiedStates = 2;
    float sum[kRows][kSteps] = {};
    int used = 0;  // number of list entries that have been added to `sum`

    __device__ Sums(const Params&, const RowTile&, char*) {}

    // Adds the weighted rows of V of the first `units` units of the list (kPad entries each), except entries that were
    // already added.
    __device__ void advance(const Params& p, const RowTile& t, const AliveList& list, int units, bool) {
      constexpr int kKeys = 2;
      for (; used < kPad * units; used += kKeys) {
        const int n = list.place(used);
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
      __syncwarp();
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

void decode_plain(const Params& p, cudaStream_t stream) { launch<Plain>(p, stream); }

}  // namespace lazy::kernels::cuda::decoding
