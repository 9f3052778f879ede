// Rotary position embedding. A thread rotates the same pairs of two heads of a token, so that it loads the cosines and
// sines only once for both heads.
#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/rope_pairs.cuh"
#include "ops/cuda/rows.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 2;

// Work items of a launch. An item is a vector of a head. A head consists of `turning` items whose pairs are rotated and
// `items - turning` items that are copied.
struct RopeWork {
  unsigned turning, items, groups, total;  // groups: groups of heads per token
};

template <typename T, int N, bool INTERLEAVED, bool PLACES>
__global__ void __launch_bounds__(kThreads) rotate(const Rope a, const RopeWork work) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= work.total) return;
  const unsigned row = index / work.items, item = index - row * work.items;
  const unsigned token = row / work.groups, group = row - token * work.groups;
  const unsigned batch = token / static_cast<unsigned>(a.length), t = token - batch * static_cast<unsigned>(a.length);
  const T* x = static_cast<const T*>(a.x) + batch * a.batch_stride + t * a.token_stride;
  T* y = static_cast<T*>(a.y) + token * a.y_stride;
  const unsigned heads = static_cast<unsigned>(a.heads);
  unsigned head[kHeads];
#pragma unroll
  // If the number of heads is odd, the last head is processed twice.
  for (int k = 0; k < kHeads; ++k) head[k] = min(group + k * work.groups, heads - 1);

  if (item >= work.turning) {
    const int64_t at = 2 * a.table.pairs + (item - work.turning) * N;
    Bits<T, N> kept[kHeads];
#pragma unroll
    for (int k = 0; k < kHeads; ++k) kept[k] = load_once<T, N>(x + head[k] * a.head_stride + at);
#pragma unroll
    for (int k = 0; k < kHeads; ++k) store<T, N>(y + head[k] * a.dim + at, kept[k]);
    return;
  }

  constexpr bool kOneVector = kPairsInVector<N, INTERLEAVED>;
  constexpr int P = kOneVector ? N / 2 : N;  // pairs per thread and head
  const unsigned pair = item * P;
  const unsigned first = INTERLEAVED ? 2 * pair : pair;
  const unsigned second =
      // `second` is not used if a vector contains both elements of a pair.
      INTERLEAVED ? first + 1 : pair + static_cast<unsigned>(a.table.pairs);
  Bits<T, N> low[kHeads], high[kHeads];
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    low[k] = load_once<T, N>(x + head[k] * a.head_stride + first);
    if constexpr (!kOneVector) high[k] = load_once<T, N>(x + head[k] * a.head_stride + second);
  }
  int64_t position = a.offset + t;
  if constexpr (PLACES) {
    const int64_t place = batch * a.places_batch_stride + t * a.places_token_stride;
    position = a.places64 ? a.places64[place] : a.places32[place];
  }
  float c[P] = {}, s[P] = {};
  angles<P, PLACES>(a.table, position, pair, c, s);
#pragma unroll
  for (int i = 0; i < P; ++i) s[i] = a.inverse ? -s[i] : s[i];
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    T* out = y + head[k] * a.dim;
    turn<T, N, INTERLEAVED>(low[k], high[k], c, s);
    if constexpr (!kOneVector) store<T, N>(out + second, high[k]);
    store<T, N>(out + first, low[k]);
  }
}

// Recursively splits the batch, or a single sequence, into two halves until the indices of a launch fit in 32 bits.
template <typename T, int N>
void launch(const Rope& a, cudaStream_t stream) {
  const int64_t turning = a.interleaved && N > 1 ? 2 * a.table.pairs / N : a.table.pairs / N;
  const int64_t items = turning + (a.dim - 2 * a.table.pairs) / N, groups = (a.heads + kHeads - 1) / kHeads;
  const int64_t total = a.batch * a.length * groups * items;
  if (total >= int64_t{1} << 31 && a.batch * a.length > 1) {
    Rope left = a, right = a;
    const bool by_batch = a.batch > 1;
    const int64_t half = (by_batch ? a.batch : a.length) / 2;
    (by_batch ? left.batch : left.length) = half;
    (by_batch ? right.batch : right.length) -= half;
    right.x = static_cast<const T*>(a.x) + half * (by_batch ? a.batch_stride : a.token_stride);
    right.y = static_cast<T*>(a.y) + half * (by_batch ? a.length : 1) * a.y_stride;
    if (!by_batch) right.offset += half;
    const int64_t places = half * (by_batch ? a.places_batch_stride : a.places_token_stride);
    if (a.places32) right.places32 += places;
    if (a.places64) right.places64 += places;
    launch<T, N>(left, stream);
    return launch<T, N>(right, stream);
  }
  const RopeWork work{static_cast<unsigned>(turning), static_cast<unsigned>(items), static_cast<unsigned>(groups),
                      static_cast<unsigned>(total)};
  const unsigned blocks = (work.total + kThreads - 1) / kThreads;
  const bool places = a.places32 || a.places64;
  if (a.interleaved) {
    (places ? rotate<T, N, true, true> : rotate<T, N, true, false>)<<<blocks, kThreads, 0, stream>>>(a, work);
  } else {
    (places ? rotate<T, N, false, true> : rotate<T, N, false, false>)<<<blocks, kThreads, 0, stream>>>(a, work);
  }
  check_launch("rope");
}

}  // namespace

void rope(const Rope& a, cudaStream_t stream) {
  if (a.batch == 0 || a.length == 0 || a.heads == 0 || a.dim == 0) return;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = kWide<T>;
    bool wide = aligned(a.x) && aligned(a.y);
    const int64_t side = a.interleaved ? 2 * a.table.pairs : a.table.pairs;
    for (const int64_t step : {a.batch_stride, a.token_stride, a.head_stride, a.y_stride, a.dim, side}) {
      wide = wide && step % N == 0;
    }
    if (wide) return launch<T, N>(a, stream);
    launch<T, 1>(a, stream);
  });
}

}  // namespace lazy::ops::cuda
