// What a block does with an item of decode's queue, and what the last block of a tile adds.
#pragma once
#include "attention/cuda/decode_threshold.cuh"

namespace lazy::kernels::cuda::decoding {

// A piece of work: key or value item `index` of a tile's `of`.
struct Item {
  bool none, values;                        // none: the queue is empty
  int index, of;
  int phase;                                // of the queue
  RowTile tile;
};

// Shared memory of a block beside the warps' own. What a whole item needs lies here and not in registers, which hold loads.
struct Shared {
  Item item;
  bool last;
  RowState state[kRows];
  float mass[kWarps][kRows];
  int alive[kWarps][kRows];
  Above room[kWarps];
};

// A warp's piece of shared memory for key items: offsets of its keys, and products dots[r * stride + n]; the stride keeps
// the stores of a fragment in different banks.
struct KeyMemory {
  int64_t* offsets;
  float* dots;
  int stride;
  __device__ KeyMemory(const Params& p, char* memory)
      : offsets(reinterpret_cast<int64_t*>(memory)), dots(reinterpret_cast<float*>(offsets + p.part)), stride(p.part + 4) {}
};
constexpr int key_bytes(int part, int rows) { return part * 8 + rows * (part + 4) * 4; }

// The same for value items.
__device__ inline AliveList make_list(const Params& p, char* memory) {
  auto* at = reinterpret_cast<int64_t*>(memory);
  return {at, reinterpret_cast<float*>(at + p.scan), p.scan + 8};
}
constexpr int list_bytes(int scan, int rows) { return scan * 8 + rows * (scan + 8) * 4; }

// One row's products of a warp's part to scores, kept, and their maximum and sum of exponentials.
__device__ inline void finish_scores(const Params& p, const RowTile& t, int r, int begin, int count, const int64_t* offsets,
                                     float* dots, float2* part) {
  const int lane = threadIdx.x % 32, head = t.head(p, r), query = t.query(p, r);
  const int here = position(p, t.sequence.length, query);
  const Keys keys = visible(p, t.sequence.length, query);
  const float* bias = p.distance_bias + static_cast<int64_t>(head) * p.bias_window;
  const float slope = p.alibi_slopes ? p.alibi_slopes[head] : 0;
  float* kept = p.scores + (t.kept + r) * p.columns + (begin - t.sequence.first);
  float largest = -INFINITY;
  for (int n = lane; n < count; n += 32) {
    const int key = begin + n, distance = abs(here - key);
    float s = p.scale * dots[n];
    if (distance < p.bias_window) s += __ldg(bias + distance);
    if (p.alibi_slopes) s -= slope * static_cast<float>(distance);
    if (offsets[n] == kBadPage) s = NAN;
    kept[n] = s;
    if (key < keys.begin || key >= keys.end) s = -INFINITY;
    dots[n] = s;
    largest = fmaxf(largest, s);
  }
  largest = warp_max(largest);
  const float base = largest == -INFINITY ? 0 : largest;
  float sum = 0;
  for (int n = lane; n < count; n += 32) sum += expf(dots[n] - base);
  sum = warp_sum(sum);
  if (lane == 0) *part = {largest, sum};
}

// claim() is called when the block has little left to do.
template <typename Products, typename Claim>
__device__ void key_item(const Params& p, const RowTile& t, int item, char* memory, const Claim& claim) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, index = item * kWarps + warp;
  const KeyMemory m(p, memory);
  const int begin = t.sequence.first + index * p.part, count = min(t.sequence.end - begin, p.part);
  if (count > 0) {
    for (int n = lane; n < (count + kPad - 1) / kPad * kPad; n += 32) {
      m.offsets[n] = n < count ? key_offset(p, p.k, t.batch, begin + n) : kAbsent;
    }
    __syncwarp();
    Products::scores(p, t, m.offsets, count, m.dots, m.stride);
    __syncwarp();
  }
  claim();
  for (int r = 0; r < t.rows; ++r) {
    float2* part = p.parts + (t.row + r) * p.most_parts + index;
    if (count > 0) {
      finish_scores(p, t, r, begin, count, m.offsets, m.dots + r * m.stride, part);
    } else if (lane == 0) {
      *part = {-INFINITY, 0};
    }
  }
}

// Softmax and its like, and sigmoid, which needs no sum: a warp a row, from the parts.
__device__ inline void complete_row(const Params& p, const RowTile& t, int r, int parts) {
  const int lane = threadIdx.x % 32;
  const float2* part = p.parts + (t.row + r) * p.most_parts;
  RowState state = make_state(p, t, r);
  const bool has_sink = p.normalizer == Normalizer::softmax_sink, seen = state.begin < state.end;
  const float sink = has_sink ? p.sink[t.head(p, r)] : -INFINITY;
  float largest = sink, sum = 0, lse = 0;
#pragma unroll 4
  for (int n = lane; n < parts; n += 32) largest = fmaxf(largest, __ldcg(part + n).x);
  largest = warp_max(largest);
  const float base = largest == -INFINITY ? 0 : largest;
#pragma unroll 4
  for (int n = lane; n < parts; n += 32) {
    const float2 x = __ldcg(part + n);
    sum += x.y * expf(x.x - base);
  }
  sum = warp_sum(sum);
  if (has_sink) sum += expf(sink - base);
  if (p.normalizer != Normalizer::sigmoid) {
    state.largest = largest;
    state.inverse = 1 / sum;
    lse = seen ? largest + logf(sum) : -INFINITY;
  }
  if (lane != 0) return;
  p.states[t.row + r] = state;
  if (p.lse) p.lse[t.row + r] = t.sequence.length < 0 ? NAN : lse;
}

// Sparsemax and entmax15: the block a row, from the scores.
__device__ inline void complete_threshold(const Params& p, const RowTile& t, int r, int parts, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const float2* part = p.parts + (t.row + r) * p.most_parts;
  RowState state = make_state(p, t, r);
  const int count = state.end - state.begin;
  float largest = -INFINITY, sum = 0;       // of every warp alike
#pragma unroll 4
  for (int n = lane; n < parts; n += 32) {
    const float2 x = __ldcg(part + n);
    largest = fmaxf(largest, x.x);
    sum += x.y;                             // NaN where a score is
  }
  largest = warp_max(largest);
  sum = warp_sum(sum);
  const bool entmax = p.normalizer == Normalizer::entmax15;
  const float* s = p.scores + (t.kept + r) * p.columns + (state.begin - t.sequence.first);
  float lse = -INFINITY;
  if (count > 0 && (isnan(sum) || isinf(largest))) {
    lse = state.largest = state.inverse = NAN;
  } else if (count > 0) {
    state.largest = largest;
    state.inverse =
        entmax ? entmax15_threshold(s, count, largest, shared.room) : sparsemax_threshold(s, count, largest, shared.room);
    lse = largest * (entmax ? 0.5f : 1.0f) + state.inverse;
  }
  if (threadIdx.x != 0) return;
  p.states[t.row + r] = state;
  if (p.lse) p.lse[t.row + r] = t.sequence.length < 0 ? NAN : lse;
}

// A warp's keys [begin, begin + count) to a list of those that carry weight for any row, in order. R: t.rows rounded up to a
// power of two. SOFTMAX: softmax and its like. Adds to the warp's sums of weights and its counts of alive keys.
template <int R, bool SOFTMAX>
__device__ int list_alive(const Params& p, const RowTile& t, const RowState* state, int begin, int count,
                          const AliveList& list, float (&mass_sum)[kRows], int (&alive_sum)[kRows]) {
  constexpr int kSteps = kRows / R;         // 32 keys each; as many loads in flight
  const int lane = threadIdx.x % 32, rows = t.rows;
  const float* scores = p.scores + t.kept * p.columns + (begin - t.sequence.first);
  float mass[R] = {};
  int listed = 0, alive[R] = {};
  for (int first = 0; first < count; first += 32 * kSteps) {
    float score[kSteps][R];
    int64_t at[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int n = min(first + 32 * i + lane, count - 1);
#pragma unroll
      for (int r = 0; r < R; ++r) score[i][r] = r < rows ? __ldcg(scores + int64_t{r} * p.columns + n) : 0;
    }
    if (p.block_table) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) at[i] = paged_offset(p, p.v, t.batch, begin + min(first + 32 * i + lane, count - 1));
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) at[i] = plain_offset(p.v, t.batch, begin + first + 32 * i + lane);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int n = first + 32 * i + lane, key = begin + n;
      bool needed = false;
      float weight[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const bool there = n < count && r < rows && key >= state[r].begin && key < state[r].end;
        const Weighed w = SOFTMAX ? weigh_softmax(state[r], score[i][r]) : weigh(p.normalizer, state[r], score[i][r]);
        weight[r] = there ? w.weight : 0;
        mass[r] += weight[r];
        alive[r] += there && w.alive;
        needed |= !(weight[r] == 0);
      }
      const unsigned mask = __ballot_sync(~0u, needed);
      if (needed) {
        const int place = listed + __popc(mask & ((1u << lane) - 1));
        list.at[place] = at[i];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (r < rows) list.weight[r * list.stride + place] = weight[r] * state[r].lift;
        }
      }
      listed += __popc(mask);
    }
  }
  for (int n = listed + lane; n < (listed + kPad - 1) / kPad * kPad; n += 32) {
    list.at[n] = kAbsent;
    for (int r = 0; r < rows; ++r) list.weight[r * list.stride + n] = 0;
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    mass[r] = warp_sum(mass[r]);
    alive[r] = warp_sum(alive[r]);
    if (lane == 0) {
      mass_sum[r] += mass[r];
      alive_sum[r] += alive[r];
    }
  }
  return listed;
}

__device__ inline int list_alive(const Params& p, const RowTile& t, const RowState* state, int begin, int count,
                                 const AliveList& list, float (&mass)[kRows], int (&alive)[kRows]) {
  if (begin == 0 && p.stats && threadIdx.x % 32 < t.rows) {  // weight on the sequence's first key
    const int r = threadIdx.x % 32;
    if (state[r].begin == 0 && state[r].end > 0) {
      p.firsts[t.row + r] = weigh(p.normalizer, state[r], __ldcg(p.scores + (t.kept + r) * p.columns)).weight;
    }
  }
  if (!softmax_like(p.normalizer)) return list_alive<8, false>(p, t, state, begin, count, list, mass, alive);
  if (t.rows == 1) return list_alive<1, true>(p, t, state, begin, count, list, mass, alive);
  if (t.rows == 2) return list_alive<2, true>(p, t, state, begin, count, list, mass, alive);
  if (t.rows <= 4) return list_alive<4, true>(p, t, state, begin, count, list, mass, alive);
  return list_alive<8, true>(p, t, state, begin, count, list, mass, alive);
}

// `room`: shared memory of all warps, p.warp_bytes each.
template <typename Products, typename Claim>
__device__ void value_item(const Params& p, const RowTile& t, int item, char* room, Shared& shared, const Claim& claim) {
  const int warp = threadIdx.x / 32;
  static_assert(sizeof(RowState) == 2 * sizeof(int4));
  if (threadIdx.x < 2 * kRows) {            // rows that are not there are never looked at, but for their lift
    const int r = min(static_cast<int>(threadIdx.x) / 2, t.rows - 1), half = threadIdx.x % 2;
    reinterpret_cast<int4*>(shared.state)[threadIdx.x] = __ldcg(reinterpret_cast<const int4*>(p.states + t.row + r) + half);
  }
  if (threadIdx.x < kWarps * kRows) {
    shared.mass[threadIdx.x / kRows][threadIdx.x % kRows] = 0;
    shared.alive[threadIdx.x / kRows][threadIdx.x % kRows] = 0;
  }
  __syncthreads();
  const AliveList list = make_list(p, room + warp * p.warp_bytes);
  typename Products::Sums sums;
  for (int c = 0; c < p.chunks; ++c) {
    const int begin = t.sequence.first + ((item * p.chunks + c) * kWarps + warp) * p.scan;
    const int count = min(t.sequence.end - begin, p.scan);
    if (count <= 0) break;
    const int listed = list_alive(p, t, shared.state, begin, count, list, shared.mass[warp], shared.alive[warp]);
    __syncwarp();
    sums.add(p, t, list, listed);
    __syncwarp();
  }
  claim();
  __syncthreads();                          // the lists are used up
  auto* all = reinterpret_cast<float*>(room);
  const int numbers = t.rows * p.value_dim;
  sums.store(p, t, all + warp * numbers);
  __syncthreads();
  for (int n = threadIdx.x; n < numbers; n += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all[w * numbers + n];
    const int r = n / p.value_dim;
    p.sums[((t.row + r) * p.most_spans + item) * p.value_dim + n % p.value_dim] = sum / shared.state[r].lift;
  }
  if (threadIdx.x < t.rows) {
    const int r = threadIdx.x;
    float sum = 0;
    int count = 0;
    for (int w = 0; w < kWarps; ++w) {
      sum += shared.mass[w][r];
      count += shared.alive[w][r];
    }
    p.masses[(t.row + r) * p.most_spans + item] = {sum, __int_as_float(count)};
  }
}

// Adds up the value items of a tile, in order.
__device__ inline void complete_values(const Params& p, const RowTile& t, int spans) {
  const bool bad = t.sequence.length < 0;
  for (int n = threadIdx.x; n < t.rows * p.value_dim; n += kThreads) {
    const int r = n / p.value_dim, d = n % p.value_dim;
    const float* from = p.sums + (t.row + r) * p.most_spans * p.value_dim + d;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < spans; ++i) sum += __ldcg(from + int64_t{i} * p.value_dim);
    store(p.out.data, t.batch * p.out.batch + t.query(p, r) * p.out.token + t.head(p, r) * p.out.head + d * p.out.dim,
          p.dtype, bad ? NAN : sum);
  }
  if (!p.stats || threadIdx.x >= t.rows) return;
  const int r = threadIdx.x;
  float mass = 0;
  int64_t alive = 0;
#pragma unroll 8
  for (int i = 0; i < spans; ++i) {
    const float2 x = __ldcg(p.masses + (t.row + r) * p.most_spans + i);
    mass += x.x;
    alive += __float_as_int(x.y);
  }
  const Keys keys = visible(p, max(t.sequence.length, 0), t.query(p, r));
  const float first = keys.begin == 0 && keys.end > 0 ? __ldcg(p.firsts + t.row + r) : 0;
  float released = 1 - mass;
  if (p.normalizer == Normalizer::softmax_sink && keys.begin < keys.end) {  // the sink's own share, which may be far below one
    const RowState* const state = p.states + t.row + r;
    released = expf(p.sink[t.head(p, r)] - __ldcg(&state->largest)) * __ldcg(&state->inverse);
  }
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
  p.stats[t.row + r] = bad ? NAN : first;
  p.stats[rows + t.row + r] = bad ? NAN : released;
  p.stats[2 * rows + t.row + r] = bad ? NAN : static_cast<float>(alive);
}

}  // namespace lazy::kernels::cuda::decoding
