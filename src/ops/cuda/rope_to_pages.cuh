// Rotation of a token's q and k, and its keys and values into pages: 16 bytes at a time, unless they are not aligned.
#pragma once
#include "ops/cuda/rope_pairs.cuh"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda {

// A token has items of its heads of q and k, then of v, of N numbers.
struct RopeItems {
  unsigned turned, items, of_value, all;  // of a head of q and k, `turned` of them of pairs; of v; of a token
};

template <int N>
RopeItems rope_items(const RopeToPages& p) {
  RopeItems n;
  n.turned = static_cast<unsigned>((p.interleaved && N > 1 ? 2 : 1) * p.table.pairs / N);
  n.items = n.turned + static_cast<unsigned>((p.dim - 2 * p.table.pairs) / N);
  n.of_value = static_cast<unsigned>(p.dim / N);
  n.all = static_cast<unsigned>(p.heads + p.kv_heads) * n.items + static_cast<unsigned>(p.kv_heads) * n.of_value;
  return n;
}

// Not through the read-only path: what is in front may still write when this one starts.
template <typename T, int N>
__device__ Bits<T, N> fetch(const T* from) {
  return __ldcg(reinterpret_cast<const Bits<T, N>*>(from));
}

// An item of a token.
template <typename T, int N, bool INTERLEAVED>
__device__ void rotate_item(const RopeToPages& p, const RopeItems& work, int64_t token, unsigned index) {
  const unsigned heads = static_cast<unsigned>(p.heads), kv = static_cast<unsigned>(p.kv_heads);
  const auto page = [&] { return p.slots[token] * p.kv_heads * p.dim; };
  const auto copy = [](const T* from, T* to) { store<T, N>(to, fetch<T, N>(from)); };
  const unsigned of_rotated = (heads + kv) * work.items;
  if (index >= of_rotated) {
    const unsigned head = (index - of_rotated) / work.of_value, item = (index - of_rotated) - head * work.of_value;
    return copy(static_cast<const T*>(p.v) + token * p.v_token + head * p.v_head + item * N,
                static_cast<T*>(p.values) + page() + head * p.dim + item * N);
  }
  const unsigned head = index / work.items, item = index - head * work.items;
  const T* from;
  T* to;
  if (head < heads) {
    from = static_cast<const T*>(p.q) + token * p.q_token + head * p.q_head;
    to = static_cast<T*>(p.q_out) + (token * p.heads + head) * p.dim;
  } else {
    from = static_cast<const T*>(p.k) + token * p.k_token + (head - heads) * p.k_head;
    to = static_cast<T*>(p.keys) + page() + (head - heads) * p.dim;
  }
  if (item >= work.turned) {
    const int64_t at = 2 * p.table.pairs + (item - work.turned) * N;
    return copy(from + at, to + at);
  }
  constexpr bool kOneVector = kPairsInVector<N, INTERLEAVED>;
  constexpr int P = kOneVector ? N / 2 : N;  // pairs of a thread
  const unsigned pair = item * P, first = INTERLEAVED ? 2 * pair : pair,
                 second = INTERLEAVED ? first + 1 : pair + static_cast<unsigned>(p.table.pairs);
  Bits<T, N> low = fetch<T, N>(from + first), high{};
  if constexpr (!kOneVector) high = fetch<T, N>(from + second);
  float cos[P] = {}, sin[P] = {};
  angles<P, true>(p.table, p.positions[token], pair, cos, sin);
  turn<T, N, INTERLEAVED>(low, high, cos, sin);
  store<T, N>(to + first, low);
  if constexpr (!kOneVector) store<T, N>(to + second, high);
}

}  // namespace lazy::ops::cuda
