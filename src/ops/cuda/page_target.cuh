// Epilogue of a matrix product: applies RoPE to q and k, and writes q, k and v to their destinations (PageTarget in
// step.h).
#pragma once
#include "ops/cuda/rope_pairs.cuh"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda {

// A pair of elements that RoPE rotates together. A token has (heads + 2 kv_heads) * dim / 2 pairs: first the pairs of
// the heads of q, then of k, then of v. Four adjacent pairs that start at a multiple of four belong to one head, and
// either all or none of them are rotated.
struct RopePair {
  int head, number;   // number: index of the pair in the head
  int first, second;  // indices of the two elements in the head
  bool turned;
};
__device__ inline RopePair pair_of(const PageTarget& p, int index) {
  const int pairs = static_cast<int>(p.dim / 2), turning = static_cast<int>(p.table.pairs);
  RopePair r;
  r.head = index / pairs;
  r.number = index - r.head * pairs;
  r.turned = r.head < p.heads + p.kv_heads && r.number < turning;
  const bool apart = r.turned && !p.interleaved;
  r.first = apart ? r.number : 2 * r.number;
  r.second = apart ? r.number + turning : r.first + 1;
  return r;
}

// KV-cache slot and position of a token. They are loaded first, so that the RoPE angles of the position can be loaded
// long before they are used.
struct TokenSlot {
  int64_t slot, position;
};
__device__ inline TokenSlot token_slot(const PageTarget& p, int64_t token) {
  return {p.slots[token], p.positions[token]};
}

template <int N>
struct Angles {
  float cos[N] = {}, sin[N] = {};
};
__device__ inline bool in_table(const PageTarget& p, const TokenSlot& place) {
  return place.position >= 0 && place.position < p.table.positions;
}
// Loads the cosines and sines of N adjacent pairs, starting at `pair`, if the table contains the position.
template <int N>
__device__ Angles<N> angles_of(const PageTarget& p, const RopePair& pair, const TokenSlot& place) {
  Angles<N> r;
  if (pair.turned && in_table(p, place))
    angles<N, false>(p.table, place.position, static_cast<unsigned>(pair.number), r.cos, r.sin);
  return r;
}

// x and y are the first and the second elements of N adjacent pairs, N = 1 or 4. Rounds them to T, rotates the pairs
// with the cosines and sines `by`, and stores them.
template <typename T, int N>
__device__ void store_pairs(const PageTarget& p, int64_t token, const RopePair& pair, const TokenSlot& place,
                            Angles<N> by, const float (&x)[N], const float (&y)[N]) {
  const int heads = static_cast<int>(p.heads), kv = static_cast<int>(p.kv_heads);
  T* to;
  if (pair.head < heads) {
    to = static_cast<T*>(p.q) + (token * heads + pair.head) * p.dim;
  } else {
    const bool key = pair.head < heads + kv;
    to = static_cast<T*>(key ? p.keys : p.values) + (place.slot * kv + pair.head - heads - (key ? 0 : kv)) * p.dim;
  }
  if (pair.turned && !in_table(p, place))
    angles<N, true>(p.table, place.position, static_cast<unsigned>(pair.number), by.cos, by.sin);
  if (N == 1 || (pair.turned && !p.interleaved)) {
    Bits<T, N> low = round_all<T, N>(x), high = round_all<T, N>(y);
    if (pair.turned) turn<T, N, false>(low, high, by.cos, by.sin);
    store<T, N>(to + pair.first, low);
    store<T, N>(to + pair.second, high);
    return;
  }
  if constexpr (N > 1) {
    float both[2 * N];
#pragma unroll
    for (int i = 0; i < N; ++i) both[2 * i] = x[i], both[2 * i + 1] = y[i];
    Bits<T, 2 * N> all = round_all<T, 2 * N>(both);
    if (pair.turned) turn<T, 2 * N, true>(all, all, by.cos, by.sin);
    store<T, 2 * N>(to + pair.first, all);
  }
}

}  // namespace lazy::ops::cuda
