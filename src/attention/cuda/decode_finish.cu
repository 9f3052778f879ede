// The decode kernels that read neither K nor V: row states, score statistics and the final sums.
#include "attention/cuda/decode_normalizers.cuh"
#include "attention/cuda/score_sums.cuh"

namespace lazy::kernels::cuda::decoding {

namespace {

// States kernel: one block computes the RowState of one row from its scores. Grid: (rows of scores per sequence,
// sequences of the round).
__global__ void __launch_bounds__(kStateThreads) make_states(const __grid_constant__ Params p) {
  __shared__ float2 parts[kStateWarps];
  __shared__ Above room[kStateWarps];
  wait_for_launcher();
  let_next_start();
  const int tile = blockIdx.x / p.score_rows, r = blockIdx.x - tile * p.score_rows, lane = threadIdx.x % 32;
  const RowTile t = make_tile(p, blockIdx.y, tile);
  if (r >= t.rows) return;
  const float2* part = p.parts + (t.row + r) * p.max_parts;
  // If a normalizer does not need all scores, the values kernel may compute the state instead of this kernel. For such
  // normalizers, the parts are merged in the same order as in the values kernel, so that the results are bitwise equal.
  const bool whole = needs_all_scores(p.normalizer);
  const float2 mine =
      warp_merge(merge_parts(part, part_count(p, t.sequence), whole ? threadIdx.x : lane, whole ? kStateThreads : 32));
  if (lane == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  const float2 all = whole ? warp_merge(parts[lane]) : mine;  // the merged value is equal in every warp
  float lse;
  const RowState state =
      needs_all_scores(p.normalizer) ? state_of_scores(p, t, r, all, lse, room) : finish_state(p, t, r, all, lse);
  if (threadIdx.x == 0) keep_state(p, t, r, state, lse);
}

// Computes Decode::score_stats. The grid is the same as for make_states.
__global__ void __launch_bounds__(kStateThreads) make_score_statistics(const __grid_constant__ Params p) {
  using Sums = ScoreSums<NaturalExponential>;
  __shared__ float room[kStateWarps][3];
  wait_for_launcher();
  let_next_start();
  const int tile = blockIdx.x / p.score_rows, r = blockIdx.x - tile * p.score_rows, lane = threadIdx.x % 32;
  const RowTile t = make_tile(p, blockIdx.y, tile);
  if (r >= t.rows) return;
  const Keys keys = visible(p, max(t.sequence.length, 0), t.query(p, r));
  Sums sums;
  constexpr int kAtOnce = 4;
  for (int key = keys.begin + threadIdx.x; key < keys.end; key += kAtOnce * kStateThreads) {
    float score[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = key + i * kStateThreads;
      score[i] = at < keys.end ? __ldcg(score_at(p, t, r, at)) : -INFINITY;
    }
    sums.add<kAtOnce>(1, [&](int i) { return score[i]; });
  }
  const auto merge_warp = [&] {
    for (int d = 1; d < 32; d *= 2) sums.merge_lane(d);
  };
  merge_warp();
  if (lane == 0) {
    room[threadIdx.x / 32][0] = sums.largest;
    room[threadIdx.x / 32][1] = sums.sum;
    room[threadIdx.x / 32][2] = sums.weighted;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sums = {room[lane][0], room[lane][1], room[lane][2]};
  merge_warp();
  if (lane != 0) return;
  const ScoreStatistics of_scores = sums.finish(keys.end - keys.begin);
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
  const bool bad = t.sequence.length < 0;
  p.score_stats[t.row + r] = bad ? NAN : of_scores.largest;
  p.score_stats[rows + t.row + r] = bad ? NAN : of_scores.entropy;
}

// Writes Decode::stats of one row. Called by one warp.
__device__ void finish_stats(const Params& p, int row, int head, int query, const Sequence& s, int spans) {
  const int lane = threadIdx.x;
  float mass = 0;
  int alive = 0;
  for (int n = lane; n < spans; n += 32) {
    const float2 x = __ldcg(p.masses + static_cast<int64_t>(row) * p.max_spans + n);
    mass += x.x;
    alive += __float_as_int(x.y);
  }
  mass = warp_sum(mass);
  alive = warp_sum(alive);
  if (lane != 0) return;
  const bool bad = s.length < 0;
  const Keys keys = visible(p, max(s.length, 0), query);
  const float first = keys.begin == 0 && keys.end > 0 ? __ldcg(p.firsts + row) : 0;
  float released = 1 - mass;
  if (takes_sink(p.normalizer) && !takes_tau(p.normalizer) && keys.begin < keys.end) {
    // Compute the sink's weight directly, not as 1 - (sum of the other weights): it may be much smaller than the
    // rounding error of this difference.
    const RowState* const state = p.states + row;
    released = expf(p.sink[head] - __ldcg(&state->largest)) * __ldcg(&state->inverse);
  }
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
  p.stats[row] = bad ? NAN : first;
  p.stats[rows + row] = bad ? NAN : released;
  p.stats[2 * rows + row] = bad ? NAN : static_cast<float>(alive);
}

// Sums kernel: one block adds the partial sums of V (one per span of keys) of one output row. The block is divided into
// groups of value_dim threads, with one dimension per thread. If there are G groups, each group adds every G-th span.
__global__ void __launch_bounds__(kSumThreads) add_spans(const __grid_constant__ Params p) {
  __shared__ float sums[kSumThreads];
  wait_for_launcher();
  let_next_start();
  const int row = blockIdx.x, query = row % p.q_length, head = row / p.q_length % p.heads;
  const int batch = row / p.q_length / p.heads;
  const int groups = kSumThreads / p.value_dim, group = threadIdx.x / p.value_dim,
            d = threadIdx.x - group * p.value_dim;
  const Sequence s = read_sequence(p, batch);
  const int spans = span_count(p, s);
  if (group < groups) {
    const float* from = p.sums + static_cast<int64_t>(row) * p.max_spans * p.value_dim + d;
    float sum = 0;
#pragma unroll 8
    for (int n = group; n < spans; n += groups) sum += __ldcg(from + static_cast<int64_t>(n) * p.value_dim);
    sums[threadIdx.x] = sum;
  }
  __syncthreads();
  if (group == 0) {
    float sum = 0;
    for (int n = 0; n < groups; ++n) sum += sums[n * p.value_dim + d];
    store_out(p, batch, head, query, d, s, sum);
  }
  if (p.stats && threadIdx.x < 32) finish_stats(p, row, head, query, s, spans);
}

}  // namespace

// Returns the grid for kernels with one block per row of scores in the current round.
static dim3 score_rows(const Params& p, int sequences) {
  const unsigned rows = static_cast<unsigned>(p.round_tiles) * static_cast<unsigned>(p.score_rows);
  return dim3(rows, static_cast<unsigned>(sequences));
}

void launch_states(const Params& p, int sequences, cudaStream_t stream) {
  start<make_states>(p, score_rows(p, sequences), kStateThreads, 0, true, stream);
}

void launch_score_statistics(const Params& p, int sequences, cudaStream_t stream) {
  start<make_score_statistics>(p, score_rows(p, sequences), kStateThreads, 0, true, stream);
}

void launch_sums(const Params& p, cudaStream_t stream) {
  start<add_spans>(p, static_cast<unsigned>(p.batch * p.heads * p.q_length), kSumThreads, 0, true, stream);
}

}  // namespace lazy::kernels::cuda::decoding
