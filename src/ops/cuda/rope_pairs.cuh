// Applies RoPE to pairs of elements, which are adjacent or half a head apart, with cosines and sines from a table.
#pragma once
#include "ops/cuda/rows.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

// Computes the cosine and sine for positions that are not in the table. The function is not inlined, because inlining
// would increase the number of registers of all threads.
inline __device__ __noinline__ float2 turn_by(double frequency, int64_t position, double factor) {
  if (position < 0) return {NAN, NAN};
  double s, c;
  sincos(static_cast<double>(position) * frequency, &s, &c);
  return {static_cast<float>(factor * c), static_cast<float>(factor * s)};
}

// Loads the cosines and sines of P pairs, starting at `pair`, for a position.
template <int P, bool PLACES>
__device__ void angles(const RopeTable& table, int64_t position, unsigned pair, float (&cos)[P], float (&sin)[P]) {
  if constexpr (PLACES) {
    if (position < 0 || position >= table.positions) {
#pragma unroll 1
      for (int i = 0; i < P; ++i) {
        const float2 both = turn_by(table.frequency[pair + i], position, table.attention_factor);
#pragma unroll
        for (int n = 0; n < P; ++n) {  // constant indices allow the compiler to keep the arrays in registers
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

// Whether both elements of a RoPE pair are in the same vector of N elements.
template <int N, bool INTERLEAVED>
constexpr bool kPairsInVector = INTERLEAVED&& N > 1;

// Rotates pairs of elements. With kPairsInVector, x contains whole pairs and y is not used. Otherwise, x contains the
// first elements of the pairs and y contains the second elements.
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
