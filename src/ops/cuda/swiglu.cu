// SwiGLU, silu(gate) * up, and its gradients, computed elementwise. The rows of gate and up may be slices of a wider
// tensor.
#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 2;  // number of vectors per tensor that a thread has in flight

// Offsets in gate and in up that correspond to vector `n` of a contiguous tensor whose rows have `vectors` vectors.
struct GateUpOffsets {
  int64_t gate, up;
};
template <int N>
__device__ GateUpOffsets place(const Swiglu& a, unsigned n, unsigned vectors) {
  const unsigned row = n / vectors, column = (n - row * vectors) * N;
  return {row * a.gate_stride + column, row * a.up_stride + column};
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) forward(const Swiglu a, unsigned vectors, unsigned total) {
  const unsigned first = blockIdx.x * (kThreads * kHeld) + threadIdx.x;
  Bits<T, N> gate[kHeld], up[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {  // threads beyond the end compute the last vector again and do not write it
    const GateUpOffsets at = place<N>(a, min(first + k * kThreads, total - 1), vectors);
    gate[k] = load_once<T, N>(static_cast<const T*>(a.gate) + at.gate);
    up[k] = load_once<T, N>(static_cast<const T*>(a.up) + at.up);
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float g[N], u[N];
    expand<T, N>(gate[k], g);
    expand<T, N>(up[k], u);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = g[i] * sigmoid<T>(g[i]) * u[i];
    const unsigned n = first + k * kThreads;
    if (n < total) store<T, N>(static_cast<T*>(a.y) + int64_t{n} * N, round_all<T, N>(g));
  }
}

// With s = sigmoid(gate), the formulas are  y = gate s up,  d_up = d_y gate s,  d_gate = d_y up s (1 + gate (1 - s)).
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) backward(const Swiglu a, unsigned vectors, unsigned total) {
  const unsigned first = blockIdx.x * (kThreads * kHeld) + threadIdx.x;
  Bits<T, N> gate[kHeld], up[kHeld], d_y[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const unsigned n = min(first + k * kThreads, total - 1);
    const GateUpOffsets at = place<N>(a, n, vectors);
    gate[k] = load_once<T, N>(static_cast<const T*>(a.gate) + at.gate);
    up[k] = load_once<T, N>(static_cast<const T*>(a.up) + at.up);
    d_y[k] = load_once<T, N>(static_cast<const T*>(a.d_y) + int64_t{n} * N);
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float g[N], u[N], d[N];
    expand<T, N>(gate[k], g);
    expand<T, N>(up[k], u);
    expand<T, N>(d_y[k], d);
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float s = sigmoid<T>(g[i]), slope = s * fmaf(g[i], 1 - s, 1.0f);
      y[i] = g[i] * s * u[i];
      g[i] = d[i] * (g[i] * s);
      u[i] = d[i] * u[i] * slope;
    }
    const unsigned n = first + k * kThreads;
    if (n >= total) continue;
    const unsigned row = n / vectors;
    const int64_t at = row * a.d_stride + (n - row * vectors) * N;
    store<T, N>(static_cast<T*>(a.d_gate) + at, round_all<T, N>(u));
    store<T, N>(static_cast<T*>(a.d_up) + at, round_all<T, N>(g));
    if (a.y) store<T, N>(static_cast<T*>(a.y) + int64_t{n} * N, round_all<T, N>(y));
  }
}

// Returns the address of row `row` of a contiguous output or of an input with stride `stride`.
template <typename T, typename Void>
Void* rows_from(Void* data, int64_t row, int64_t stride) {
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
  return data ? static_cast<Element*>(data) + row * stride : nullptr;
}

template <typename T, int N>
void launch(const Swiglu& a, bool gradients, cudaStream_t stream) {
  const int64_t vectors = a.dim / N;
  const int64_t most_rows = std::max<int64_t>(1, (int64_t{1} << 30) / vectors);  // indices of a launch fit in 32 bits
  for (int64_t row = 0; row < a.rows; row += most_rows) {
    Swiglu part = a;
    part.rows = std::min(most_rows, a.rows - row);
    part.gate = rows_from<T>(a.gate, row, a.gate_stride);
    part.up = rows_from<T>(a.up, row, a.up_stride);
    part.y = rows_from<T>(a.y, row, a.dim);
    part.d_y = rows_from<T>(a.d_y, row, a.dim);
    part.d_gate = rows_from<T>(a.d_gate, row, a.d_stride);
    part.d_up = rows_from<T>(a.d_up, row, a.d_stride);
    const auto total = static_cast<unsigned>(part.rows * vectors);
    const unsigned blocks = (total + kThreads * kHeld - 1) / (kThreads * kHeld);
    if (gradients) {
      backward<T, N><<<blocks, kThreads, 0, stream>>>(part, static_cast<unsigned>(vectors), total);
    } else {
      forward<T, N><<<blocks, kThreads, 0, stream>>>(part, static_cast<unsigned>(vectors), total);
    }
    check_launch(gradients ? "swiglu_backward" : "swiglu");
  }
}

void launch_any(const Swiglu& a, bool gradients, cudaStream_t stream) {
  if (a.rows == 0 || a.dim == 0) return;
  const bool wide =
      aligned(a.gate) && aligned(a.up) && aligned(a.y) && aligned(a.d_y) && aligned(a.d_gate) && aligned(a.d_up);
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = kWide<T>;
    if (wide && a.dim % N == 0 && a.gate_stride % N == 0 && a.up_stride % N == 0 && a.d_stride % N == 0)
      return launch<T, N>(a, gradients, stream);
    launch<T, 1>(a, gradients, stream);
  });
}

}  // namespace

void swiglu(const Swiglu& a, cudaStream_t stream) { launch_any(a, false, stream); }
void swiglu_backward(const Swiglu& a, cudaStream_t stream) { launch_any(a, true, stream); }

}  // namespace lazy::ops::cuda
