// From a tile's exponentials to elastic's weights, and the statistics of rows on the way.
#pragma once
#include "attention/cuda/hopper_forward_consumer.cuh"

namespace lazy::kernels::cuda::hopper {

// x y + z, clamped to [0, 1] by the instruction itself. A NaN becomes zero.
__device__ inline float fma_clamped(float x, float y, float z) {
  float r;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(x), "f"(y), "f"(z));
  return r;
}

// One for each of two 16-bit weights, none of them negative, that is not zero.
__device__ inline uint32_t alive_of_two(uint32_t weights) {
  uint32_t ones;
  asm volatile("min.u16x2 %0, %1, %2;" : "=r"(ones) : "r"(weights), "r"(0x00010001));
  return ones;
}

template <typename T, int N, bool STATS>
struct Weigher {
  // bf16 never rounds a weight to zero, so that the packed weights tell who is alive; fp16 does.
  static constexpr bool kCountsPacked = std::is_same_v<T, __nv_bfloat16>;
  RowResults& r;
  float tau;

  // Below zero, tau leaves no weight above one, so that a clamp keeps what is alive. Otherwise every visible key is,
  // and what a row adds up to is known without adding.
  __device__ bool clamps() const { return STATS && tau < 0; }

  // s becomes the weights of exponential(s, h), where nothing is clamped those below zero too. Their sum is taken in
  // the same loop: there it fits between the exponentials.
  template <typename Exponential>
  __device__ void weigh(float (&s)[N / 2], const float (&inverse)[2], const float (&offset)[2],
                        Exponential exponential) {
    if (clamps()) {
      float total[2][2] = {};
      uint32_t alive[2] = {};
#pragma unroll
      for (int n = 0; n < N / 2; n += 2) {
        const int h = n / 2 % 2;
        s[n] = fma_clamped(exponential(s[n], h), inverse[h], offset[h]);
        s[n + 1] = fma_clamped(exponential(s[n + 1], h), inverse[h], offset[h]);
        total[h][0] += s[n];
        total[h][1] += s[n + 1];
        if constexpr (!kCountsPacked) alive[h] += alive_of_two(pack<__nv_bfloat16>(s[n], s[n + 1]));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        settle(total[h]);  // the compiler would make these sums after the loop
        r.total[h] += total[h][0] + total[h][1];
      }
      if constexpr (!kCountsPacked) add_alive(alive);
      return;
    }
#pragma unroll
    for (int n = 0; n < N / 2; ++n) s[n] = fmaf(exponential(s[n], n / 2 % 2), inverse[n / 2 % 2], offset[n / 2 % 2]);
  }
  __device__ void add_alive(const uint32_t (&alive)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      r.alive[h] = static_cast<int>(__dp2a_lo(alive[h], 0x0101u, static_cast<uint32_t>(r.alive[h])));
  }

  // Alive pairs of a tile whose product has been issued: they are counted while it and the next scores are under way.
  __device__ void count(const uint32_t (&weights)[N / 16][4]) {
    if constexpr (STATS && kCountsPacked) {
      uint32_t alive[2] = {};
#pragma unroll
      for (int k = 0; k < N / 16; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) alive[n % 2] += alive_of_two(weights[k][n]);
      }
      add_alive(alive);
    }
  }

  // Weights of the tile that begins with the first key. NaN where the row's are: the clamp has made zeros of them.
  __device__ void take_first(const RowGroup& b, const float (&s)[N / 2], const float (&inverse)[2]) {
    if (!STATS || b.lane % 4 != 0) return;
    r.head[0] = fmaf(inverse[0], 0, s[0]);
    r.head[1] = fmaf(inverse[1], 0, s[2]);
  }

  template <int O>
  __device__ void finish(const RowGroup& b, float (&o)[O], const float (&inverse)[2], const float (&offset)[2]) {
    if constexpr (!STATS) return;
    if (clamps()) {
#pragma unroll
      for (int n = 0; n < O; ++n) o[n] = fmaf(inverse[n / 2 % 2], 0, o[n]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (clamps()) {
        r.total[h] = fmaf(inverse[h], 0, r.total[h]);
      } else {  // one lane of a row tells
        const Keys keys = b.keys(h);
        const int visible = b.lane % 4 == 0 ? max(keys.end - keys.begin, 0) : 0;
        r.alive[h] = visible;
        r.total[h] = visible > 0 ? fmaf(static_cast<float>(visible), offset[h], fmaf(inverse[h], 0, 1)) : 0;
      }
    }
  }
};

}  // namespace lazy::kernels::cuda::hopper
