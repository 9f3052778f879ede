// Numbers of q, k and v on their way to step.h's ToPages, in the pairs that are turned.
#pragma once
#include "ops/cuda/step.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

// A token has (heads + 2 kv_heads) * dim / 2 pairs: q's heads, k's, v's.
struct Pair {
  int head, number;
  int first, second;  // dimensions
  bool turned;
};
__device__ inline Pair pair_of(const ToPages& p, int index) {
  const int pairs = static_cast<int>(p.dim / 2), turning = static_cast<int>(p.table.pairs);
  Pair r;
  r.head = index / pairs;
  r.number = index - r.head * pairs;
  r.turned = r.head < p.heads + p.kv_heads && r.number < turning;
  const bool apart = r.turned && !p.interleaved;
  r.first = apart ? r.number : 2 * r.number;
  r.second = apart ? r.number + turning : r.first + 1;
  return r;
}

// Not inlined: its registers would be every thread's.
__device__ __noinline__ inline float2 turn_by(double frequency, int64_t position, double factor) {
  double s, c;
  sincos(static_cast<double>(position) * frequency, &s, &c);
  return {static_cast<float>(factor * c), static_cast<float>(factor * s)};
}

// Where a pair of a token goes, and its angle.
struct PairTarget {
  int64_t slot, position;
  float2 angle;  // cosine, sine; not known beyond the table
};
__device__ inline PairTarget target_of(const ToPages& p, int token, const Pair& pair) {
  PairTarget r{p.slots[token], 0, {1, 0}};
  if (!pair.turned) return r;
  r.position = p.positions[token];
  const int64_t at = r.position * p.table.pairs + pair.number;
  if (r.position < p.table.positions) r.angle = {__ldg(p.table.cos + at), __ldg(p.table.sin + at)};
  return r;
}

template <typename T>
__device__ void store_pair(const ToPages& p, int token, const Pair& pair, const PairTarget& target, float x, float y) {
  const int heads = static_cast<int>(p.heads), kv = static_cast<int>(p.kv_heads), head = pair.head;
  T* const to = head < heads ? static_cast<T*>(p.q) + (int64_t{token} * heads + head) * p.dim
                             : static_cast<T*>(head < heads + kv ? p.keys : p.values) +
                                   (target.slot * kv + (head - heads) % kv) * p.dim;
  float2 angle = target.angle;
  if (pair.turned) {
    if (target.position >= p.table.positions)
      angle = turn_by(p.table.frequency[pair.number], target.position, p.table.attention_factor);
    const float turned = fmaf(-y, angle.y, x * angle.x);
    y = fmaf(x, angle.y, y * angle.x);
    x = turned;
  }
  to[pair.first] = rounded<T>(x);
  to[pair.second] = rounded<T>(y);
}

}  // namespace lazy::ops::cuda
