// Quantizes bf16 matrices to 8-bit floating point, in row-major and in transposed order. The first pass finds the
// largest absolute value; the second pass quantizes.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 128, kRows = 64;  // size of a tile; a thread has 4 rows of 8 columns
// Number of 32-bit words per column of the tile in shared memory. A word contains the elements of 4 rows. One extra
// word per column avoids bank conflicts.
constexpr int kWords = kRows / 4 + 1;

// Computes the largest absolute value. Each warp processes one row at a time. Absolute values are compared as integers,
// which have the same order; NaN is the largest value.
template <int N>
__global__ void __launch_bounds__(kThreads) maximum(const QuantizeFp8 a) {
  constexpr int kWarps = kThreads / 32;
  const unsigned per_row = static_cast<unsigned>(a.dim) / N;
  unsigned most = 0;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < a.rows;
       row += int64_t{gridDim.x} * kWarps) {
    const auto* x = static_cast<const __nv_bfloat16*>(a.x) + row * a.x_stride;
#pragma unroll 4
    for (unsigned n = threadIdx.x % 32; n < per_row; n += 32) {
      if constexpr (N == 1) {
        most = max(most, static_cast<unsigned>(__bfloat16_as_ushort(x[n]) & 0x7fff));
      } else {
        const uint4 bits = load<__nv_bfloat16, N>(x + n * N);
        for (const unsigned pair : {bits.x, bits.y, bits.z, bits.w})
          most = max(most, max(pair & 0x7fff, (pair >> 16) & 0x7fff));
      }
    }
  }
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % 32 == 0 && most) atomicMax(reinterpret_cast<unsigned*>(a.maximum), most << 16);
}

template <bool E5M2>
__device__ unsigned char to_fp8(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, E5M2 ? __NV_E5M2 : __NV_E4M3);
}

// WIDE: the kernel loads 16 bytes and stores 8 or 16 bytes at a time; sizes and addresses must be multiples of 16.
template <bool E5M2, bool WIDE>
__global__ void __launch_bounds__(kThreads) quantize(const QuantizeFp8 a) {
  __shared__ uint32_t tile[kColumns * kWords];
  const float most = *a.maximum >= a.least_maximum || isnan(*a.maximum) ? *a.maximum : a.least_maximum;
  const float factor = a.largest / most;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *a.scale = most / a.largest;
  const int64_t first_row = int64_t{blockIdx.x} * kRows, first_column = int64_t{blockIdx.y} * kColumns;
  const int group = threadIdx.x / 16, column = threadIdx.x % 16 * 8;
  const int columns = static_cast<int>(min(int64_t{8}, a.dim - first_column - column));
  uint8_t bytes[4][8];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = first_row + group * 4 + r;
    const bool there = row < a.rows && columns > 0;
    const auto* x = static_cast<const __nv_bfloat16*>(a.x) + row * a.x_stride + first_column + column;
    float values[8] = {};
    if (there) {
      if constexpr (WIDE) {
        expand<__nv_bfloat16, 8>(load_once<__nv_bfloat16, 8>(x), values);
      } else {
        for (int n = 0; n < columns; ++n) values[n] = __bfloat162float(x[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) bytes[r][n] = to_fp8<E5M2>(values[n] * factor);
    if (!there || !a.q) continue;
    auto* q = static_cast<uint8_t*>(a.q) + row * a.width + a.first + first_column + column;
    if constexpr (WIDE) {
      *reinterpret_cast<uint2*>(q) = *reinterpret_cast<const uint2*>(bytes[r]);
    } else {
      for (int n = 0; n < columns; ++n) q[n] = bytes[r][n];
    }
  }
  if (!a.q_transposed) return;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    tile[(column + n) * kWords + group] = static_cast<uint32_t>(bytes[0][n]) | static_cast<uint32_t>(bytes[1][n]) << 8 |
                                          static_cast<uint32_t>(bytes[2][n]) << 16 |
                                          static_cast<uint32_t>(bytes[3][n]) << 24;
  }
  __syncthreads();
  for (int n = threadIdx.x; n < kColumns * (kRows / 16); n += kThreads) {
    const int c = n / (kRows / 16), part = n % (kRows / 16);
    const int64_t row = first_row + part * 16;
    if (first_column + c >= a.dim || row >= a.rows) continue;
    const uint32_t* words = tile + c * kWords + part * 4;
    auto* to = static_cast<uint8_t*>(a.q_transposed) + (a.first + first_column + c) * a.rows + row;
    if constexpr (WIDE) {
      *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
    } else {
      for (int r = 0; r < 16 && row + r < a.rows; ++r) to[r] = static_cast<uint8_t>(words[r / 4] >> (r % 4 * 8));
    }
  }
}

bool whole(const QuantizeFp8& a) {
  return aligned(a.x) && a.x_stride % 8 == 0 && a.dim % 16 == 0 && a.first % 16 == 0 && a.width % 16 == 0 &&
         a.rows % 16 == 0;
}

template <bool E5M2>
void launch_quantize(const QuantizeFp8& a, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((a.rows + kRows - 1) / kRows),
                    static_cast<unsigned>((a.dim + kColumns - 1) / kColumns));
  if (whole(a)) {
    quantize<E5M2, true><<<blocks, kThreads, 0, stream>>>(a);
  } else {
    quantize<E5M2, false><<<blocks, kThreads, 0, stream>>>(a);
  }
}

}  // namespace

void largest_magnitude(const QuantizeFp8& a, cudaStream_t stream) {
  if (a.rows == 0 || a.dim == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(a.rows, 132 * 8));
  if (aligned(a.x) && a.x_stride % 8 == 0 && a.dim % 8 == 0) {
    maximum<8><<<blocks, kThreads, 0, stream>>>(a);
  } else {
    maximum<1><<<blocks, kThreads, 0, stream>>>(a);
  }
  check_launch("quantize_fp8");
}

void quantize_fp8(const QuantizeFp8& a, cudaStream_t stream) {
  if (a.rows == 0 || a.dim == 0) return;
  a.e5m2 ? launch_quantize<true>(a, stream) : launch_quantize<false>(a, stream);
  check_launch("quantize_fp8");
}

}  // namespace lazy::ops::cuda
