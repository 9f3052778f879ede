// The backward of sparsemax and entmax-1.5 by key lists, second kernel: dK and dV from the pairs that backward_lists
// leaves, weight and ds with them, instead of the scores of all. A block keeps sums of a tile of keys in shared memory
// and goes over the lists of the rows that see them. Of tiles of rows with more keys of weight in a row than its list
// holds backward_keys has made dK and dV before; these sums are added to it.
#pragma once
#include "attention/cuda/portable_backward_keys.cuh"

namespace lazy::kernels::cuda::portable {

template <int D>
struct ListedKeysShape {
  static constexpr int N = D <= 64 ? 128 : 64, warps = 16, threads = 32 * warps;
  static constexpr int own = N / warps;            // keys whose sums a warp adds up
  static constexpr int room = kListCapacity + 68;  // pairs that a warp finds before they are added
  static_assert(D % 64 == 0);
  static constexpr int columns = D / 2, sums = N * columns;  // of two numbers
  static constexpr int bytes = 2 * sums * 8 + warps * room * 8;
};

// A pair of a row of the head under way and a key of the block: the entry of the row's list is entry_and_key / 128.
struct FoundPair {
  int row, entry_and_key;
  __device__ int entry() const { return entry_and_key / 128; }
  __device__ int key() const { return entry_and_key % 128; }
};

template <typename T, int D>
__global__ void __launch_bounds__(ListedKeysShape<D>::threads, 2) backward_listed_keys(const Params p, int tiles) {
  using S = ListedKeysShape<D>;
  constexpr int M = BackwardKeysShape<D>::M, columns = S::columns, ahead = 4;
  extern __shared__ __align__(16) char memory[];
  float2* const d_v = reinterpret_cast<float2*>(memory);
  float2* const d_k = d_v + S::sums;
  FoundPair* const pairs = reinterpret_cast<FoundPair*>(d_k + S::sums);
  __shared__ int found[S::warps];
  const int kv_head = blockIdx.y, group = p.heads / p.kv_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Tile t;
  t.batch = blockIdx.x / tiles;
  if (!locate(p, blockIdx.x % tiles, S::N, true, t)) return;
  const int key0 = t.first, count = min(S::N, t.k_length - key0);
  const Keys rows = rows_seeing(p, t, key0, key0 + count - 1);
  if (rows.begin >= rows.end) return;
  for (int n = threadIdx.x; n < 2 * S::sums; n += S::threads) d_v[n] = make_float2(0, 0);
  bool any = false;  // of the warp's keys

  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const T* const q = static_cast<const T*>(p.q.data) + q_offset(p.q, t, head, 0);
    const T* const d_out = static_cast<const T*>(p.d_out.data) + q_offset(p.d_out, t, head, 0);
    const int64_t first_row = row_index(p, t, head, 0);
    const int* const list_keys = p.list_keys + first_row * kListCapacity;
    const uint32_t* const list_numbers = p.list_numbers + first_row * kListCapacity;
    int at = rows.begin / 16 * 16 + 16 * warp, next = 0;  // 16 rows at a time; the next of them
    auto skip_swept = [&] {
      while (at < rows.end && is_swept(p, t, head, at, M)) at += 16 * S::warps;
    };
    skip_swept();
    while (true) {
      // Pairs of the warp's rows, in their order, until the room might not suffice for another row.
      int stored = 0;
      if (at < rows.end) {
        const int length = lane < 16 && at + lane < t.q_length ? p.list_counts[first_row + at + lane] : 0;
        auto take = [&](int row, int n, int key) {
          const bool hit = key >= 0 && key < count;
          const unsigned hits = __ballot_sync(~0u, hit);
          if (hit) pairs[warp * S::room + stored + __popc(hits & ((1u << lane) - 1))] = {row, n * 128 + key};
          stored += __popc(hits);
        };
        while (next < 16 && stored + kListCapacity <= S::room) {
          const int from = next;
          int of_row[ahead], key[ahead];  // keys 0 to 31 of the next rows
#pragma unroll
          for (int i = 0; i < ahead; ++i) {
            of_row[i] = __shfl_sync(~0u, length, from + i);  // 0 beyond the 16
            key[i] = lane < of_row[i] ? list_keys[int64_t{at + from + i} * kListCapacity + lane] - key0 : -1;
          }
#pragma unroll
          for (int i = 0; i < ahead; ++i) {
            if (stored + kListCapacity > S::room) break;
            const int row = at + from + i, n = lane + 32;
            take(row, lane, key[i]);
            if (of_row[i] > 32) take(row, n, n < of_row[i] ? list_keys[int64_t{row} * kListCapacity + n] - key0 : -1);
            next = from + i + 1;
          }
        }
        if (next >= 16) {
          at += 16 * S::warps;
          next = 0;
          skip_swept();
        }
      }
      if (lane == 0) found[warp] = stored;
      const bool more = __syncthreads_or(at < rows.end);
      // Those of the warp's keys, by all warps in turn.
      for (int from = 0; from < S::warps; ++from) {
        const FoundPair* const list = pairs + from * S::room;
        for (int base = 0; base < found[from]; base += 32) {
          const int n = base + lane;
          unsigned mine = __ballot_sync(~0u, n < found[from] && list[min(n, S::room - 1)].key() / S::own == warp);
          any |= mine != 0;
          while (mine) {
            int at_once[ahead];
#pragma unroll
            for (int i = 0; i < ahead; ++i) {
              at_once[i] = mine ? base + __ffs(mine) - 1 : -1;
              mine &= mine - 1;
            }
#pragma unroll
            for (int step = 0; step < columns / 32; ++step) {
              const int column = lane + 32 * step;
              uint32_t numbers[ahead], of_q[ahead], of_d_out[ahead];
#pragma unroll
              for (int i = 0; i < ahead; ++i) {
                if (at_once[i] < 0) continue;
                const int64_t row = list[at_once[i]].row;
                numbers[i] = __ldg(list_numbers + row * kListCapacity + list[at_once[i]].entry());
                of_q[i] = __ldg(reinterpret_cast<const uint32_t*>(q + row * p.q.token) + column);
                of_d_out[i] = __ldg(reinterpret_cast<const uint32_t*>(d_out + row * p.d_out.token) + column);
              }
#pragma unroll
              for (int i = 0; i < ahead; ++i) {
                if (at_once[i] < 0) continue;
                const int key = list[at_once[i]].key();
                const float2 number = unpack<T>(numbers[i]), x = unpack<T>(of_q[i]), y = unpack<T>(of_d_out[i]);
                float2 &k = d_k[key * columns + column], &v = d_v[key * columns + column];
                v = make_float2(fmaf(number.x, y.x, v.x), fmaf(number.x, y.y, v.y));
                k = make_float2(fmaf(number.y, x.x, k.x), fmaf(number.y, x.y, k.y));
              }
            }
          }
        }
      }
      if (!__syncthreads_or(more)) break;
    }
  }
  if (!any) return;
  __syncwarp();
  auto add = [&](const Tensor& to, const float2* sums, float scale) {
    if (!to.data) return;
    T* const base = static_cast<T*>(to.data) + k_offset(to, t, kv_head, key0);
    for (int n = lane; n < S::own * columns; n += 32) {
      const int key = warp * S::own + n / columns, column = n % columns;
      if (key >= count) break;
      uint32_t& at = reinterpret_cast<uint32_t*>(base + key * to.token)[column];
      const float2 before = unpack<T>(at), x = sums[key * columns + column];
      at = pack<T>(fmaf(scale, x.x, before.x), fmaf(scale, x.y, before.y));
    }
  };
  add(p.d_k, d_k, p.scale);
  add(p.d_v, d_v, 1);
}

}  // namespace lazy::kernels::cuda::portable
