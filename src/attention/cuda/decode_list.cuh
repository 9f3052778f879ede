// The keys that carry weight, from their scores: a warp's list of the addresses of their rows of V, and their weights.
#pragma once
#include "attention/cuda/decode_normalizers.cuh"

namespace lazy::kernels::cuda::decoding {

// Keys of a row that a lane has in flight.
constexpr int steps_at_once(int rows) { return rows <= 2 ? 4 / rows : 1; }

// A warp's keys [begin, begin + count) to a list of those that carry weight for any row, in order, which `sums` takes in
// units of kPad. R: t.rows rounded up to a power of two. Adds to the warp's sums of weights and its counts of alive
// keys, which only stats want. While rows of V are on their way to `sums`, the next keys are listed.
template <int R, NormalizerFamily F, typename Sums>
__device__ void sum_alive(const Params& p, const RowTile& t, const RowState* states, int begin, int count,
                          char* list_memory, float (&mass_sum)[kRows], int (&alive_sum)[kRows], Sums& sums) {
  constexpr int kSteps = steps_at_once(R);  // 32 keys each
  static_assert(list_places(R) >= kPad * Sums::kStages + kPad - 1 + 32 * kSteps);
  const AliveList list = make_list(list_memory, R);
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
  for (int first = 0;; first += 32 * kSteps) {
    const bool last = first >= count;
    if (!last) {
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
          const int place = list.place(listed + __popc(mask & ((1u << lane) - 1)));
          list.at[place] = at[i];
#pragma unroll
          for (int r = 0; r < R; ++r) {
            if (r < rows) list.weight[r * list.stride + place] = weight[r] * state[r].weight_scale;
          }
        }
        listed += __popc(mask);
      }
    } else {
      const int full = (listed + kPad - 1) / kPad * kPad;
      if (listed + lane < full) {
        const int place = list.place(listed + lane);
        list.at[place] = kAbsent;
        for (int r = 0; r < rows; ++r) list.weight[r * list.stride + place] = 0;
      }
      listed = full;
    }
    __syncwarp();
    sums.advance(p, t, list, listed / kPad, last);
    if (last) break;
  }
  if (!p.stats) return;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    mass[r] = warp_sum(mass[r]);
    alive[r] = warp_sum(alive[r]);
    if (lane == 0) {
      mass_sum[r] += mass[r];
      alive_sum[r] += alive[r];
    }
  }
}

// The same for any tile. `state`: in shared memory. The warp that has the sequence's first key also notes the weight on
// it.
template <typename Sums>
__device__ void sum_keys(const Params& p, const RowTile& t, const RowState* state, int begin, int count, char* list,
                         float (&mass)[kRows], int (&alive)[kRows], Sums& sums) {
  if (begin == 0 && p.stats && threadIdx.x % 32 < t.rows) {
    const int r = threadIdx.x % 32;
    if (state[r].begin == 0 && state[r].end > 0) {
      p.firsts[t.row + r] = weigh(p.normalizer, state[r], __ldcg(p.scores + (t.kept + r) * p.columns)).weight;
    }
  }
  using enum NormalizerFamily;
  if (needs_all_scores(p.normalizer)) {
    sum_alive<8, threshold>(p, t, state, begin, count, list, mass, alive, sums);
  } else if (p.normalizer == Normalizer::sigmoid) {
    sum_alive<8, sigmoid>(p, t, state, begin, count, list, mass, alive, sums);
  } else if (t.rows == 1) {
    sum_alive<1, exponential>(p, t, state, begin, count, list, mass, alive, sums);
  } else if (t.rows == 2) {
    sum_alive<2, exponential>(p, t, state, begin, count, list, mass, alive, sums);
  } else if (t.rows <= 4) {
    sum_alive<4, exponential>(p, t, state, begin, count, list, mass, alive, sums);
  } else {
    sum_alive<8, exponential>(p, t, state, begin, count, list, mass, alive, sums);
  }
}

}  // namespace lazy::kernels::cuda::decoding
