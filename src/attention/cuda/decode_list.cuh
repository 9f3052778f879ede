// The keys that carry weight, from their scores: a warp's list of the addresses of their rows of V, and their weights.
#pragma once
#include "attention/cuda/decode_normalizers.cuh"

namespace lazy::kernels::cuda::decoding {

constexpr int kScores = 8;  // that a lane has in flight

// A warp's piece of shared memory in the values kernel.
__device__ inline AliveList make_list(const Params& p, char* memory) {
  auto* at = reinterpret_cast<int64_t*>(memory);
  return {at, reinterpret_cast<float*>(at + p.scan), p.scan + 8};
}
constexpr int list_bytes(int scan, int rows) { return scan * 8 + rows * (scan + 8) * 4; }

// A warp's keys [begin, begin + count) to a list of those that carry weight for any row, in order. R: t.rows rounded up
// to a power of two. Adds to the warp's sums of weights and its counts of alive keys, which only stats want.
template <int R, NormalizerFamily F>
__device__ int list_alive(const Params& p, const RowTile& t, const RowState* states, int begin, int count,
                          const AliveList& list, float (&mass_sum)[kRows], int (&alive_sum)[kRows]) {
  constexpr int kSteps = kScores / R;  // 32 keys each; as many loads in flight
  const int lane = threadIdx.x % 32, rows = t.rows;
  const float* scores = p.scores + t.kept * p.columns + (begin - t.sequence.first);
  constexpr bool kCopied = R <= 4;  // more would not fit
  RowState copies[kCopied ? R : 1];
  const RowState* state = kCopied ? copies : states;
  float mass[R] = {};
  int listed = 0, alive[R] = {};
#pragma unroll
  for (int r = 0; r < (kCopied ? R : 0); ++r) copies[r] = states[r];
  float ahead[kSteps][R];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const float* from = scores + min(first + 32 * i + lane, count - 1);
#pragma unroll
      for (int r = 0; r < R; ++r) ahead[i][r] = r < rows ? __ldcg(from + int64_t{r} * p.columns) : 0;
    }
  };
  load(0);
  for (int first = 0; first < count; first += 32 * kSteps) {
    float score[kSteps][R];
    int64_t at[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int r = 0; r < R; ++r) score[i][r] = ahead[i][r];
    }
    if (first + 32 * kSteps < count) load(first + 32 * kSteps);
    if (p.block_table) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        at[i] = paged_offset(p, p.v, t.batch, begin + min(first + 32 * i + lane, count - 1));
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) at[i] = plain_offset(p.v, t.batch, begin + first + 32 * i + lane);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (first + 32 * i >= count) break;
      const int n = first + 32 * i + lane, key = begin + n;
      bool needed = false;
      float weight[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const bool there = n < count && r < rows && key >= state[r].begin && key < state[r].end;
        const Normalizer known = F == NormalizerFamily::exponential ? Normalizer::softmax
                                 : F == NormalizerFamily::sigmoid   ? Normalizer::sigmoid
                                                                    : p.normalizer;
        const Weighed w = weigh(known, state[r], score[i][r]);
        weight[r] = there ? w.weight : 0;
        if (p.stats) {
          mass[r] += weight[r];
          alive[r] += there && w.alive;
        }
        needed |= !(weight[r] == 0);
      }
      const unsigned mask = __ballot_sync(~0u, needed);
      if (needed) {
        const int place = listed + __popc(mask & ((1u << lane) - 1));
        list.at[place] = at[i];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (r < rows) list.weight[r * list.stride + place] = weight[r] * state[r].weight_scale;
        }
      }
      listed += __popc(mask);
    }
  }
  for (int n = listed + lane; n < (listed + kPad - 1) / kPad * kPad; n += 32) {
    list.at[n] = kAbsent;
    for (int r = 0; r < rows; ++r) list.weight[r * list.stride + n] = 0;
  }
  if (!p.stats) return listed;
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

// The same for any tile. `state`: in shared memory. The warp that has the sequence's first key also notes the weight on
// it.
__device__ inline int list_keys(const Params& p, const RowTile& t, const RowState* state, int begin, int count,
                                const AliveList& list, float (&mass)[kRows], int (&alive)[kRows]) {
  if (begin == 0 && p.stats && threadIdx.x % 32 < t.rows) {
    const int r = threadIdx.x % 32;
    if (state[r].begin == 0 && state[r].end > 0) {
      p.firsts[t.row + r] = weigh(p.normalizer, state[r], __ldcg(p.scores + (t.kept + r) * p.columns)).weight;
    }
  }
  if (needs_all_scores(p.normalizer))
    return list_alive<8, NormalizerFamily::threshold>(p, t, state, begin, count, list, mass, alive);
  if (p.normalizer == Normalizer::sigmoid) {
    return list_alive<8, NormalizerFamily::sigmoid>(p, t, state, begin, count, list, mass, alive);
  }
  if (t.rows == 1) return list_alive<1, NormalizerFamily::exponential>(p, t, state, begin, count, list, mass, alive);
  if (t.rows == 2) return list_alive<2, NormalizerFamily::exponential>(p, t, state, begin, count, list, mass, alive);
  if (t.rows <= 4) return list_alive<4, NormalizerFamily::exponential>(p, t, state, begin, count, list, mass, alive);
  return list_alive<8, NormalizerFamily::exponential>(p, t, state, begin, count, list, mass, alive);
}

}  // namespace lazy::kernels::cuda::decoding
