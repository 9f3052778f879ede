// Decode's kernels that touch neither K nor V: states and sums.
#include "attention/cuda/decode_weights.cuh"

namespace lazy::kernels::cuda::decoding {

namespace {

// The threshold of sparsemax and entmax-1.5 over a row's kept scores, by a whole block:
//   sparsemax: w = max(x - theta, 0),   x = s - largest
//   entmax15:  w = max(x - theta, 0)^2, x = (s - largest) / 2
// theta lies in [-1, 0). From -1, where the sum is at least one, Newton steps on the convex falling sum rise towards it
// and never pass it.
constexpr int kStateWarps = 32, kStateThreads = 32 * kStateWarps;

// What lies above theta: how many, sum of the excess, sum of its squares.
struct Above {
  int count;
  double sum, squares;
};

// s: the row's visible scores. Every thread of the block calls and gets the same.
__device__ inline Above above(const float* s, int count, float largest, float unit, float theta,
                              Above (&room)[kStateWarps]) {
  Above mine{};
  constexpr int kAtOnce = 8;
  for (int n = threadIdx.x; n < count; n += kAtOnce * kStateThreads) {
    float score[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = n + i * kStateThreads;
      score[i] = at < count ? __ldcg(s + at) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float excess = (score[i] - largest) * unit - theta;
      if (excess > 0) {
        ++mine.count;
        mine.sum += excess;
        mine.squares += static_cast<double>(excess) * excess;
      }
    }
  }
  mine = {warp_sum(mine.count), warp_sum(mine.sum), warp_sum(mine.squares)};
  __syncthreads();  // the last call's are read
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  Above all{};
  for (int w = 0; w < kStateWarps; ++w) {
    all.count += room[w].count;
    all.sum += room[w].sum;
    all.squares += room[w].squares;
  }
  return all;
}

__device__ inline float sparsemax_threshold(const float* s, int count, float largest, Above (&room)[kStateWarps]) {
  double theta = -1;
  // Each step takes the support of the last threshold; once it stays, the threshold is exact.
  for (int support = INT32_MAX;;) {
    const Above a = above(s, count, largest, 1, static_cast<float>(theta), room);
    theta += (a.sum - 1) / a.count;
    if (a.count >= support) return static_cast<float>(theta);
    support = a.count;
  }
}

__device__ inline float entmax15_threshold(const float* s, int count, float largest, Above (&room)[kStateWarps]) {
  double theta = -1;
  for (int support = 0;;) {
    const Above a = above(s, count, largest, 0.5f, static_cast<float>(theta), room);
    const double step = (a.squares - 1) / (2 * a.sum);
    // On a fixed support the sum is a quadratic in theta. Its root is the answer if the support there is the same; from
    // a support that is too large it lies beyond.
    const double discriminant = a.sum * a.sum - a.count * (a.squares - 1);
    if (a.count == support && discriminant >= 0) {
      const float root = static_cast<float>(theta + (a.squares - 1) / (a.sum + sqrt(discriminant)));
      if (above(s, count, largest, 0.5f, root, room).count == a.count) return root;
    }
    if (!(step > 1e-7)) return static_cast<float>(theta + step);
    theta += step;
    support = a.count;
  }
}

constexpr int kSumThreads = 512;

// all: largest score of the row; NaN beside it where a score is.
__device__ RowState threshold_state(const Params& p, const RowTile& t, int r, float2 all, float& lse,
                                    Above (&room)[kStateWarps]) {
  RowState state = make_state(p, t, r);
  const int count = state.end - state.begin;
  const bool entmax = p.normalizer == Normalizer::entmax15;
  const float* s = p.scores + (t.kept + r) * p.columns + (state.begin - t.sequence.first);
  lse = -INFINITY;
  if (count > 0 && (isnan(all.y) || isinf(all.x))) {
    lse = state.largest = state.inverse = NAN;
  } else if (count > 0) {
    state.largest = all.x;
    state.inverse = entmax ? entmax15_threshold(s, count, all.x, room) : sparsemax_threshold(s, count, all.x, room);
    lse = all.x * (entmax ? 0.5f : 1.0f) + state.inverse;
  }
  if (t.sequence.length < 0) lse = NAN;
  return state;
}

// Grid: (rows of scores of a sequence, sequences).
__global__ void __launch_bounds__(kStateThreads) make_states(const __grid_constant__ Params p) {
  __shared__ float2 parts[kStateWarps];
  __shared__ Above room[kStateWarps];
  wait_for_launcher();
  let_next_start();
  const int tile = blockIdx.x / p.score_rows, r = blockIdx.x - tile * p.score_rows, lane = threadIdx.x % 32;
  const RowTile t = make_tile(p, blockIdx.y, tile);
  if (r >= t.rows) return;
  const float2* part = p.parts + (t.row + r) * p.max_parts;
  const float2 mine = warp_merge(merge_parts(part, part_count(p, t.sequence), threadIdx.x, kStateThreads));
  if (lane == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  const float2 all = warp_merge(parts[lane]);  // of every warp alike
  float lse;
  const RowState state = in_family<NormalizerFamily::threshold>(p.normalizer) ? threshold_state(p, t, r, all, lse, room)
                                                                              : finish_state(p, t, r, all, lse);
  if (threadIdx.x == 0) keep_state(p, t, r, state, lse);
}

// By one warp.
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
  if (p.normalizer == Normalizer::softmax_sink && keys.begin < keys.end) {
    // The sink's own share, which may be far below one.
    const RowState* const state = p.states + row;
    released = expf(p.sink[head] - __ldcg(&state->largest)) * __ldcg(&state->inverse);
  }
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
  p.stats[row] = bad ? NAN : first;
  p.stats[rows + row] = bad ? NAN : released;
  p.stats[2 * rows + row] = bad ? NAN : static_cast<float>(alive);
}

// Grid: rows. The threads of a group have a dimension each; a group takes every groups-th span.
__global__ void __launch_bounds__(kSumThreads) add_spans(const __grid_constant__ Params p) {
  __shared__ float sums[kSumThreads];
  wait_for_launcher();
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
    const int64_t at = batch * p.out.batch + query * p.out.token + head * p.out.head + d * p.out.dim;
    store(p.out.data, at, p.dtype, s.length < 0 ? NAN : sum);
  }
  if (p.stats && threadIdx.x < 32) finish_stats(p, row, head, query, s, spans);
}

}  // namespace

void launch_states(const Params& p, int sequences, cudaStream_t stream) {
  const unsigned rows = static_cast<unsigned>(p.round_tiles) * static_cast<unsigned>(p.score_rows);
  const dim3 grid(rows, static_cast<unsigned>(sequences));
  start<make_states>(p, grid, kStateThreads, 0, true, stream);
}

void launch_sums(const Params& p, cudaStream_t stream) {
  start<add_spans>(p, static_cast<unsigned>(p.batch * p.heads * p.q_length), kSumThreads, 0, true, stream);
}

}  // namespace lazy::kernels::cuda::decoding
