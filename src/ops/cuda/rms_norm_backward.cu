// Gradients of RMSNorm. Each block processes a part of the rows. It writes d_x row by row and accumulates its
// contribution to d_weight in registers. A second kernel adds the contributions of the blocks in a fixed order.
//
// Let scale be the reciprocal root mean square of a row x, n = x scale, and g = d_y weight. Then d_x = scale (g - n
// mean(g n)) + d_sum, where d_sum is an optional gradient that is added to d_x. d_weight is the sum of d_y n over the
// rows.
#include "ops/cuda/launch.h"
#include "ops/cuda/row_sum.cuh"
#include "ops/cuda/rows.h"

namespace lazy::ops::cuda {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kShared = 256;  // maximum number of threads of a block that processes several rows at a time

template <int N>
__device__ void store_floats(float* to, const float (&x)[N]) {
  if constexpr (N == 1) {
    to[0] = x[0];
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  }
}

// Threads beyond the last row of the block's part or beyond the end of a row compute with the last valid elements and
// write nothing. LONG: rows do not fit in the registers of a block. They are then read twice, and the partial sums of
// d_weight are accumulated in memory.
template <typename T, typename W, int N, bool MORE, bool LONG>
__global__ void __launch_bounds__(kMaxThreads) gradients(const RmsNormBackward a, int64_t rows_per_part) {
  using Index = std::conditional_t<LONG, int64_t, int>;
  __shared__ float room[2][2][32];
  __shared__ alignas(16) float shared[LONG ? 1 : kShared * N];
  const auto vectors = static_cast<Index>(a.dim / N);
  const Index step = blockDim.x;
  const int64_t begin = blockIdx.x * rows_per_part, end = min(begin + rows_per_part, a.rows);
  const W* weight = static_cast<const W*>(a.weight);
  float* part = a.parts + blockIdx.x * a.dim;
  float d_weight[kHeld][N] = {};
  const auto row_start = [&](int64_t top) { return min(top + int64_t{threadIdx.y}, end - 1) * a.dim; };
  // AHEAD: the loads of the next row are issued before the sums and stores of this row. Only kernels that read two
  // tensors per row (x and d_y, but not d_sum) have enough registers for this.
  constexpr bool AHEAD = !LONG && !MORE;
  Bits<T, N> next_x[AHEAD ? kHeld : 1], next_dy[AHEAD ? kHeld : 1];
  const auto load_next = [&](int64_t start) {
#pragma unroll
    for (int k = 0; k < (AHEAD ? kHeld : 0); ++k) {
      const Index n = min(static_cast<Index>(threadIdx.x) + k * step, vectors - 1) * N;
      next_x[k] = load_once<T, N>(static_cast<const T*>(a.x) + start + n);
      next_dy[k] = load_once<T, N>(static_cast<const T*>(a.d_y) + start + n);
    }
  };
  if constexpr (AHEAD) load_next(row_start(begin));

  int turn = 0;
  for (int64_t top = begin; top < end; top += blockDim.y, turn ^= 1) {
    const bool there = top + threadIdx.y < end;
    const int64_t start = row_start(top);
    const T* x = static_cast<const T*>(a.x) + start;
    const T* d_y = static_cast<const T*>(a.d_y) + start;
    const T* d_sum = static_cast<const T*>(a.d_sum) + start;
    T* d_x = static_cast<T*>(a.d_x) + start;
    Bits<T, N> kept_x[kHeld], kept_dy[kHeld], kept_more[kHeld];
    float sums[2] = {};  // sums of x^2 and of g x
    for (Index first = threadIdx.x;; first += kHeld * step) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const Index n = min(first + k * step, vectors - 1) * N;
        kept_x[k] = AHEAD ? next_x[AHEAD ? k : 0] : load_once<T, N>(x + n);
        kept_dy[k] = AHEAD ? next_dy[AHEAD ? k : 0] : load_once<T, N>(d_y + n);
        if constexpr (MORE && !LONG) kept_more[k] = load_once<T, N>(d_sum + n);
      }
      if constexpr (AHEAD) load_next(row_start(top + blockDim.y));
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const Index n = first + k * step;
        float v[N], dy[N], w[N], squares = 0, product = 0;
        expand<T, N>(kept_x[k], v);
        expand<T, N>(kept_dy[k], dy);
        load_weights<W, N>(weight + min(n, vectors - 1) * N, w);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          squares = fmaf(v[i], v[i], squares);
          product = fmaf(dy[i] * w[i], v[i], product);
        }
        sums[0] += n < vectors ? squares : 0;
        sums[1] += n < vectors ? product : 0;
      }
      if (!LONG || first + kHeld * step >= vectors) break;
    }
    row_sum(sums, room[turn]);
    // Forces the weights to be loaded again below. If the weights stayed in registers, too few registers would remain
    // for the other loads.
    asm volatile("" : "+l"(weight));
    const auto dim = static_cast<float>(a.dim);
    const float scale = 1 / sqrtf(sums[0] / dim + a.eps), factor = sums[1] * scale * scale / dim;

    for (Index first = threadIdx.x;; first += kHeld * step) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const Index n = first + k * step, at = min(n, vectors - 1) * N;
        if constexpr (LONG) {
          kept_x[k] = load_once<T, N>(x + at);
          kept_dy[k] = load_once<T, N>(d_y + at);
          if constexpr (MORE) kept_more[k] = load_once<T, N>(d_sum + at);
        }
        float v[N], dy[N], w[N], d[N];
        expand<T, N>(kept_x[k], v);
        expand<T, N>(kept_dy[k], dy);
        load_weights<W, N>(weight + at, w);
        if constexpr (LONG) {
          if (top == begin) {
#pragma unroll
            for (int i = 0; i < N; ++i) d_weight[k][i] = 0;
          } else {
#pragma unroll
            for (int i = 0; i < N; ++i) d_weight[k][i] = part[at + i];
          }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
          d[i] = scale * fmaf(-v[i], factor, dy[i] * w[i]);
          if (there) d_weight[k][i] = fmaf(dy[i], v[i] * scale, d_weight[k][i]);
        }
        if constexpr (MORE) {
          float more[N];
          expand<T, N>(kept_more[k], more);
#pragma unroll
          for (int i = 0; i < N; ++i) d[i] += more[i];
        }
        if (there && n < vectors) store<T, N>(d_x + n * N, round_all<T, N>(d));
        if constexpr (LONG) {
          if (n < vectors) store_floats<N>(part + at, d_weight[k]);
        }
      }
      if (!LONG || first + kHeld * step >= vectors) break;
    }
  }

  if constexpr (!LONG) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const Index n = threadIdx.x + k * step;
      if (blockDim.y > 1) {  // add the partial sums of the block's rows in order
        __syncthreads();
        store_floats<N>(shared + (threadIdx.y * blockDim.x + threadIdx.x) * N, d_weight[k]);
        __syncthreads();
        for (int row = 1; threadIdx.y == 0 && row < blockDim.y; ++row) {
#pragma unroll
          for (int i = 0; i < N; ++i) d_weight[k][i] += shared[(row * blockDim.x + threadIdx.x) * N + i];
        }
      }
      if (threadIdx.y == 0 && n < vectors) store_floats<N>(part + n * N, d_weight[k]);
    }
  }
}

// Computes the column sums of a matrix (parts, dim). A block has 32 columns, and each thread adds every 32nd part.
template <typename W>
__global__ void __launch_bounds__(1024) sum_parts(const float* parts, int64_t count, int64_t dim, W* d_weight) {
  __shared__ float room[32][33];
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (column < dim) {
#pragma unroll 8
    for (int64_t p = threadIdx.y; p < count; p += 32) sum += parts[p * dim + column];
  }
  room[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= dim) return;
  for (int n = 1; n < 32; ++n) sum += room[n][threadIdx.x];
  d_weight[column] = rounded<W>(sum);
}

template <typename T, typename W, int N, bool MORE>
void launch(const RmsNormBackward& a, cudaStream_t stream) {
  const int threads = threads_per_row(a.dim / N, kMaxThreads), rows = std::max(1, kShared / threads);
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows));
  const int64_t parts = rms_norm_parts(a.rows, a.dim), rows_per_part = (a.rows + parts - 1) / parts;
  if (a.dim / N > int64_t{kHeld} * threads) {
    gradients<T, W, N, MORE, true><<<static_cast<unsigned>(parts), block, 0, stream>>>(a, rows_per_part);
  } else {
    gradients<T, W, N, MORE, false><<<static_cast<unsigned>(parts), block, 0, stream>>>(a, rows_per_part);
  }
  check_launch("rms_norm_backward");
}

}  // namespace

int64_t rms_norm_parts(int64_t rows, int64_t dim) {
  const int64_t parts = std::clamp<int64_t>(rows * dim / 16384, 1, 512), rows_per_part = (rows + parts - 1) / parts;
  // With this number of parts, every block processes at least one row.
  return std::max<int64_t>(1, (rows + rows_per_part - 1) / std::max<int64_t>(rows_per_part, 1));
}

void rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  if (a.dim == 0) return;
  const bool wide =
      aligned(a.x) && aligned(a.d_y) && aligned(a.d_sum) && aligned(a.d_x) && aligned(a.weight) && aligned(a.parts);
  with_types(a.type, a.weight_type, [&](auto row, auto weight) {
    using T = decltype(row);
    using W = decltype(weight);
    const auto launch_for = [&](auto more) {
      if (wide && a.dim % kWide<T> == 0) return launch<T, W, kWide<T>, more()>(a, stream);
      launch<T, W, 1, more()>(a, stream);
    };
    if (a.rows > 0) a.d_sum ? launch_for(std::true_type{}) : launch_for(std::false_type{});
    const int64_t parts = a.rows > 0 ? rms_norm_parts(a.rows, a.dim) : 0;
    sum_parts<W><<<static_cast<unsigned>((a.dim + 31) / 32), dim3(32, 32), 0, stream>>>(a.parts, parts, a.dim,
                                                                                        static_cast<W*>(a.d_weight));
    check_launch("rms_norm_backward");
  });
}

}  // namespace lazy::ops::cuda
