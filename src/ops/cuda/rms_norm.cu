// RMSNorm, optionally of the sum of x and a residual. A row is read once and stays in registers; only rows that do not
// fit in the registers of a block are read twice.
#include "ops/cuda/launch.h"
#include "ops/cuda/row_sum.cuh"
#include "ops/cuda/rows.h"

namespace lazy::ops::cuda {

namespace {

constexpr int kMaxThreads = 1024;

// Threads beyond the last row or beyond the end of a row load the last valid elements and write nothing. This avoids
// branches between the loads.
template <typename T, typename W, int N, bool RESIDUAL, bool LONG>
__global__ void __launch_bounds__(kMaxThreads) normalize(const RmsNorm a) {
  using Index = std::conditional_t<LONG, int64_t, int>;
  __shared__ float room[1][32];
  const int64_t own = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const bool there = own < a.rows;
  const int64_t start = (there ? own : a.rows - 1) * a.dim;
  const auto vectors = static_cast<Index>(a.dim / N);
  const Index step = blockDim.x;
  const T* x = static_cast<const T*>(a.x) + start;
  const T* residual = static_cast<const T*>(a.residual) + start;
  const W* weight = static_cast<const W*>(a.weight);
  T* sum = static_cast<T*>(a.sum) + start;
  T* y = static_cast<T*>(a.y) + start;

  Bits<T, N> kept[kHeld];
  float squares[1] = {0};
  for (Index first = threadIdx.x;; first += kHeld * step) {
    Bits<T, N> other[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const Index n = min(first + k * step, vectors - 1) * N;
      kept[k] = load_once<T, N>(x + n);
      if constexpr (RESIDUAL) other[k] = load_once<T, N>(residual + n);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const Index n = first + k * step;
      float v[N];
      expand<T, N>(kept[k], v);
      if constexpr (RESIDUAL) {
        float r[N];
        expand<T, N>(other[k], r);
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] += r[i];
        kept[k] = round_all<T, N>(v);
        if (there && n < vectors) store<T, N>(sum + n * N, kept[k]);
        expand<T, N>(kept[k], v);  // use the rounded sum, because the backward pass reads the rounded sum too
      }
      float part = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) part = fmaf(v[i], v[i], part);
      squares[0] += n < vectors ? part : 0;
    }
    if (!LONG || first + kHeld * step >= vectors) break;
  }
  row_sum(squares, room);
  const float scale = 1 / sqrtf(squares[0] / static_cast<float>(a.dim) + a.eps);

  for (Index first = threadIdx.x;; first += kHeld * step) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const Index n = first + k * step;
      // The same thread wrote this part of the sum, so no barrier is needed.
      if constexpr (LONG) {
        if (n < vectors) kept[k] = *reinterpret_cast<const Bits<T, N>*>((RESIDUAL && there ? sum : x) + n * N);
      }
      float v[N], w[N];
      expand<T, N>(kept[k], v);
      load_weights<W, N>(weight + min(n, vectors - 1) * N, w);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = v[i] * scale * w[i];
      if (there && n < vectors) store<T, N>(y + n * N, round_all<T, N>(v));
    }
    if (!LONG || first + kHeld * step >= vectors) break;
  }
}

template <typename T, typename W, int N, bool RESIDUAL>
void launch(const RmsNorm& a, cudaStream_t stream) {
  const int threads = threads_per_row(a.dim / N, kMaxThreads), rows = std::max(1, 256 / threads);
  const auto blocks = static_cast<unsigned>((a.rows + rows - 1) / rows);
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows));
  if (a.dim / N > int64_t{kHeld} * threads) {
    normalize<T, W, N, RESIDUAL, true><<<blocks, block, 0, stream>>>(a);
  } else {
    normalize<T, W, N, RESIDUAL, false><<<blocks, block, 0, stream>>>(a);
  }
  check_launch(RESIDUAL ? "add_rms_norm" : "rms_norm");
}

template <typename T, typename W, int N>
void launch(const RmsNorm& a, cudaStream_t stream) {
  if (a.residual) return launch<T, W, N, true>(a, stream);
  launch<T, W, N, false>(a, stream);
}

}  // namespace

void rms_norm(const RmsNorm& a, cudaStream_t stream) {
  if (a.rows == 0 || a.dim == 0) return;
  const bool wide = aligned(a.x) && aligned(a.residual) && aligned(a.sum) && aligned(a.y) && aligned(a.weight);
  with_types(a.type, a.weight_type, [&](auto row, auto weight) {
    using T = decltype(row);
    using W = decltype(weight);
    if (wide && a.dim % kWide<T> == 0) return launch<T, W, kWide<T>>(a, stream);
    launch<T, W, 1>(a, stream);
  });
}

}  // namespace lazy::ops::cuda
