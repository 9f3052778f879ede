// Compaction of the keys with nonzero weight: each warp computes the weights from the scores and lists the addresses of
// the corresponding rows of V together with the weights.
#pragma once
#include <type_traits>

#include "attention/cuda/decode_normalizers.cuh"

namespace lazy::kernels::cuda::decoding {

// Statistics over the keys that one warp processes, for each row of the tile. Decode::stats is computed from them.
struct SpanStats {
  struct RowSum {
    float mass;  // sum of weights
    int alive;   // number of keys with nonzero weight
  } of_row[kRows];
};

// Number of keys for which a lane computes the weights of all `rows` rows at the same time.
constexpr int steps_at_once(int rows) { return rows <= 2 ? 4 / rows : 1; }

// Loads the scores of one key for the rows of the tile. `from` is the address of the first row's score.
template <int R, NormalizerFamily F>
__device__ void load_scores(const Params& p, int rows, const float* from, float (&to)[R]) {
  if constexpr (F != NormalizerFamily::exponential || R == 1) {
#pragma unroll
    for (int r = 0; r < R; ++r) to[r] = r < rows ? __ldcg(from + r * p.score_row) : 0;
  } else if constexpr (R == 2) {  // with two rows, score_row is 1: the two scores of a key are adjacent
    const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
    to[0] = x.x, to[1] = x.y;
  } else {
#pragma unroll
    for (int r = 0; r < R; r += 4) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from + r));
      to[r] = x.x, to[r + 1] = x.y, to[r + 2] = x.z, to[r + 3] = x.w;
    }
  }
}

// Lists, in order, the keys of [begin, begin + count) that have a nonzero weight in at least one row of the tile, and
// passes the list to `sums` in units of kPad entries. `sums` copies the listed rows of V asynchronously; while these
// copies are in flight, the next keys are listed. R is t.rows rounded up to a power of two. If `stats` is not null, the
// function also computes each row's sum of weights and number of keys with nonzero weight.
template <int R, NormalizerFamily F, typename Stats, typename Sums>
__device__ void sum_alive(const Params& p, const RowTile& t, const RowState* states, int begin, int count,
                          char* list_memory, Stats stats, Sums& sums) {
  constexpr bool kStats = std::is_same_v<Stats, SpanStats*>;  // without statistics, `stats` is a null pointer
  // Number of groups of 32 keys that are processed at the same time.
  constexpr int kSteps = steps_at_once(R);
  static_assert(list_places(R) >= kPad * Sums::kStages + kPad - 1 + 32 * kSteps);
  const AliveList list = make_list(list_memory, R);
  const Normalizer normalizer = F == NormalizerFamily::exponential ? Normalizer::softmax
                                : F == NormalizerFamily::sigmoid   ? Normalizer::sigmoid
                                                                   : p.normalizer;
  const int lane = threadIdx.x % 32, rows = t.rows, batch = t.batch;
  const float* const from = score_at(p, t, 0, begin);
  // Copy the states to registers only for small tiles; the states of more rows would not fit.
  constexpr bool kCopied = R <= Sums::kCopiedStates;
  RowState copies[kCopied ? R : 1];
  const RowState* state = kCopied ? copies : states;
  float mass[R] = {};
  int listed = 0, alive = 0;  // listed: entries in the list; alive: keys with nonzero weight in row `lane`
#pragma unroll
  for (int r = 0; r < (kCopied ? R : 0); ++r) {
    copies[r] = states[min(r, rows - 1)];
    if (r >= rows) copies[r].end = copies[r].begin;
  }
  const auto sees = [&](int r, int n) {
    return n < count && (kCopied || r < rows) &&
           static_cast<unsigned>(begin + n - state[r].begin) < static_cast<unsigned>(state[r].end - state[r].begin);
  };
  float scores[kSteps][R];  // scores of the next keys
  int64_t pages[kSteps] = {};
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int n = min(first + 32 * i + lane, count - 1);
      load_scores<R, F>(p, rows, from + n * p.score_key, scores[i]);
      if (p.block_table) pages[i] = page_of(p, batch, begin + n);
    }
  };
  load(0);
  int64_t row = plain_offset(p.v, batch, begin + lane);
  for (int first = 0;; first += 32 * kSteps) {
    const bool last = first >= count;
    if (!last) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int n = first + 32 * i + lane;
        const int64_t at = p.block_table ? offset_on(pages[i], p, p.v, begin + n) : row;
        row += 32 * p.v.token;
        bool needed = false;
        unsigned living = 0;  // bit r is set if the key's weight is not zero in row r
        float weight[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const DecodeWeight w = decode_weight(normalizer, state[r], scores[i][r]);
          const bool there = sees(r, n);
          weight[r] = there ? w.weight : 0;
          living |= there && w.alive ? 1u << r : 0;
          needed |= !(weight[r] == 0);
        }
        if (kStats && p.stats) {
#pragma unroll
          for (int r = 0; r < R; ++r) {
            mass[r] += weight[r];
            const unsigned mask = __ballot_sync(~0u, living >> r & 1);
            if (lane == r) alive += __popc(mask);
          }
        }
        const unsigned mask = __ballot_sync(~0u, needed);
        if (needed) {
          const int place = list.place(listed + __popc(mask & ((1u << lane) - 1)));
          list.at[place] = at;
#pragma unroll
          for (int r = 0; r < R; ++r) list.weight[r * list.stride + place] = weight[r] * state[r].weight_scale;
        }
        listed += __popc(mask);
      }
      if (first + 32 * kSteps < count) load(first + 32 * kSteps);
    } else {
      const int full = (listed + kPad - 1) / kPad * kPad;
      if (listed + lane < full) {
        const int place = list.place(listed + lane);
        list.at[place] = kAbsent;
#pragma unroll
        for (int r = 0; r < R; ++r) list.weight[r * list.stride + place] = 0;
      }
      listed = full;
    }
    __syncwarp();
    sums.advance(p, t, list, listed / kPad, last);
    if (last) break;
  }
  if constexpr (kStats) {
    if (!p.stats) return;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      mass[r] = warp_sum(mass[r]);
      if (lane == r) stats->of_row[r] = {mass[r], alive};
    }
  }
}

// Calls sum_alive with the template arguments for the tile. `state` must point to shared memory. The warp that
// processes the sequence's first key also stores this key's weight in p.firsts.
template <typename Stats, typename Sums>
__device__ void sum_keys(const Params& p, const RowTile& t, const RowState* state, int begin, int count, char* list,
                         Stats stats, Sums& sums) {
  if (std::is_same_v<Stats, SpanStats*> && begin == 0 && p.stats && threadIdx.x % 32 < t.rows) {
    const int r = threadIdx.x % 32;
    if (state[r].begin == 0 && state[r].end > 0) {
      p.firsts[t.row + r] = decode_weight(p.normalizer, state[r], __ldcg(score_at(p, t, r, 0))).weight;
    }
  }
  using enum NormalizerFamily;
  if (needs_all_scores(p.normalizer)) {
    sum_alive<8, threshold>(p, t, state, begin, count, list, stats, sums);
  } else if (p.normalizer == Normalizer::sigmoid) {
    sum_alive<8, sigmoid>(p, t, state, begin, count, list, stats, sums);
  } else if (t.rows == 1) {
    sum_alive<1, exponential>(p, t, state, begin, count, list, stats, sums);
  } else if (t.rows == 2) {
    sum_alive<2, exponential>(p, t, state, begin, count, list, stats, sums);
  } else if (t.rows <= 4) {
    sum_alive<4, exponential>(p, t, state, begin, count, list, stats, sums);
  } else {
    sum_alive<8, exponential>(p, t, state, begin, count, list, stats, sums);
  }
}

}  // namespace lazy::kernels::cuda::decoding
