// The threshold of sparsemax and entmax-1.5 over a row's kept scores, by a whole block:
//   sparsemax: w = max(x - theta, 0),   x = s - largest
//   entmax15:  w = max(x - theta, 0)^2, x = (s - largest) / 2
// theta lies in [-1, 0). From -1, where the sum is at least one, Newton steps on the convex falling sum rise towards it
// and never pass it.
#pragma once
#include "attention/cuda/decode_rows.cuh"

namespace lazy::kernels::cuda::decoding {

constexpr int kStateWarps = 32, kStateThreads = 32 * kStateWarps;

// What lies above theta: how many, sum of the excess, sum of its squares.
struct Above {
  int count;
  double sum, squares;
};

// s: the row's visible scores. Every thread of the block calls and gets the same.
__device__ inline Above above(const float* s, int count, float largest, float unit, float theta,
                              Above (&room)[kStateWarps]) {
  Above mine{};
  constexpr int kAtOnce = 8;
  for (int n = threadIdx.x; n < count; n += kAtOnce * kStateThreads) {
    float score[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = n + i * kStateThreads;
      score[i] = at < count ? __ldcg(s + at) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float excess = (score[i] - largest) * unit - theta;
      if (excess > 0) {
        ++mine.count;
        mine.sum += excess;
        mine.squares += static_cast<double>(excess) * excess;
      }
    }
  }
  mine = {warp_sum(mine.count), warp_sum(mine.sum), warp_sum(mine.squares)};
  __syncthreads();  // the last call's are read
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  Above all{};
  for (int w = 0; w < kStateWarps; ++w) {
    all.count += room[w].count;
    all.sum += room[w].sum;
    all.squares += room[w].squares;
  }
  return all;
}

__device__ inline float sparsemax_threshold(const float* s, int count, float largest, Above (&room)[kStateWarps]) {
  double theta = -1;
  // Each step takes the support of the last threshold; once it stays, the threshold is exact.
  for (int support = INT32_MAX;;) {
    const Above a = above(s, count, largest, 1, static_cast<float>(theta), room);
    theta += (a.sum - 1) / a.count;
    if (a.count >= support) return static_cast<float>(theta);
    support = a.count;
  }
}

__device__ inline float entmax15_threshold(const float* s, int count, float largest, Above (&room)[kStateWarps]) {
  double theta = -1;
  for (int support = 0;;) {
    const Above a = above(s, count, largest, 0.5f, static_cast<float>(theta), room);
    const double step = (a.squares - 1) / (2 * a.sum);
    // On a fixed support the sum is a quadratic in theta. Its root is the answer if the support there is the same; from
    // a support that is too large it lies beyond.
    const double discriminant = a.sum * a.sum - a.count * (a.squares - 1);
    if (a.count == support && discriminant >= 0) {
      const float root = static_cast<float>(theta + (a.squares - 1) / (a.sum + sqrt(discriminant)));
      if (above(s, count, largest, 0.5f, root, room).count == a.count) return root;
    }
    if (!(step > 1e-7)) return static_cast<float>(theta + step);
    theta += step;
    support = a.count;
  }
}

}  // namespace lazy::kernels::cuda::decoding
