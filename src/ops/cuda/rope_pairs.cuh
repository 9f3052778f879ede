// Rotation of pairs of neighbouring or of far elements, whose cosines and sines come from a table.
#pragma once
#include "ops/cuda/rows.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

// What the table does not hold. Not inlined: its registers would be every thread's.
inline __device__ __noinline__ float2 turn_by(double frequency, int64_t position, double factor) {
  if (position < 0) return {NAN, NAN};
  double s, c;
  sincos(static_cast<double>(position) * frequency, &s, &c);
  return {static_cast<float>(factor * c), static_cast<float>(factor * s)};
}

// Cosines and sines of P pairs from `pair` on at this position.
template <int P, bool PLACES>
__device__ void angles(const RopeTable& table, int64_t position, unsigned pair, float (&cos)[P], float (&sin)[P]) {
  if constexpr (PLACES) {
    if (position < 0 || position >= table.positions) {
#pragma unroll 1
      for (int i = 0; i < P; ++i) {
        const float2 both = turn_by(table.frequency[pair + i], position, table.attention_factor);
#pragma unroll
        for (int n = 0; n < P; ++n) {  // constant indices keep the arrays in registers
          cos[n] = n == i ? both.x : cos[n];
          sin[n] = n == i ? both.y : sin[n];
        }
      }
      return;
    }
  }
  load_floats<P>(table.cos + position * table.pairs + pair, cos);
  load_floats<P>(table.sin + position * table.pairs + pair, sin);
}

// Whether both halves of a pair lie in one vector of N.
template <int N, bool INTERLEAVED>
constexpr bool kPairsInVector = INTERLEAVED&& N > 1;

// The pairs of x, or of x and y: their first and second halves.
template <typename T, int N, bool INTERLEAVED, int P>
__device__ void turn(Bits<T, N>& x, Bits<T, N>& y, const float (&cos)[P], const float (&sin)[P]) {
  float u[N];
  expand<T, N>(x, u);
  if constexpr (kPairsInVector<N, INTERLEAVED>) {
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const float p = u[2 * i], q = u[2 * i + 1];
      u[2 * i] = fmaf(-q, sin[i], p * cos[i]);
      u[2 * i + 1] = fmaf(p, sin[i], q * cos[i]);
    }
  } else {
    float v[N];
    expand<T, N>(y, v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float p = u[i], q = v[i];
      u[i] = fmaf(-q, sin[i], p * cos[i]);
      v[i] = fmaf(p, sin[i], q * cos[i]);
    }
    y = round_all<T, N>(v);
  }
  x = round_all<T, N>(u);
}

}  // namespace lazy::ops::cuda
