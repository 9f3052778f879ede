// The forward pass of fast weights of two layers with momentum, over clusters of blocks. u and the first layer's g are
// not written: the backward pass computes them.
#include "ops/cuda/fast_weights_cluster.cuh"

namespace lazy::ops::cuda::learning {

using namespace spread;

namespace {

constexpr int kBytes =
    (6 * kTile + 2 * kT) * static_cast<int>(sizeof(float)) + (11 * kHalfTile + 2 * kT) * static_cast<int>(sizeof(Half));
static_assert(kBytes <= kMostBytes);

}  // namespace

__global__ void __launch_bounds__(kThreads, 1) forward_cluster(const __grid_constant__ FastWeightsProblem p) {
  if (!kClusters) return;
  float *const W_first = shared_memory(), *const S_first = W_first + kTile;
  float *const W_last = S_first + kTile, *const S_last = W_last + kTile;
  float *const Z = S_last + kTile, *const O = Z + kTile;  // parts of the last layer's outputs and overlap
  float *const read_keep = O + kTile, *const read_carry = read_keep + kT;
  // Factors of products: the state, the tokens.
  Half *const w_first = reinterpret_cast<Half*>(read_carry + kT), *const s_first = w_first + kHalfTile;
  Half *const w_last = s_first + kHalfTile, *const s_last = w_last + kHalfTile;
  Half *const K = s_last + kHalfTile, *const Q = K + kHalfTile;
  Half *const U = Q + kHalfTile, *const X = U + kHalfTile;  // the last layer's inputs at k and q
  Half *const G = X + kHalfTile, *const B = G + kHalfTile;  // the gradients by the first and the last layer's outputs
  Half* const P = B + kHalfTile;                            // a layer's steps
  Half *const steps = P + kHalfTile, *const momentum_steps = steps + kT;
  // Without the last layer's steps: behind these, not where a slower warp still reads.
  float* const own_outputs = reinterpret_cast<float*>(P + kOwned * kHalfRow);
  static_assert(kOwned * kRow * sizeof(float) <= (kT - kOwned) * kHalfRow * sizeof(Half));
  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  const int64_t n = blockIdx.x / kBlocks;
  const int own = rank * kOwned + warp();  // the warp's token, for the cluster
  const FastWeightsLayer &first = p.first, &last = p.last;
  const InnerLoss loss(p, n);
  float4 next_k[kFetched], next_q[kFetched];
  const auto load = [&](int64_t index) {
    read_part(next_k, p.k + index * kT * kDim);
    read_part(next_q, p.q + index * kT * kDim);
  };
  const Place start{n, kHidden, kT};
  fetch_tile(W_first, first.W_start + start.first(rank), kHidden);
  fetch_tile(S_first, first.S_start + start.first(rank), kHidden);
  fetch_tile(W_last, last.W_start + start.last(rank), kDim);
  fetch_tile(S_last, last.S_start + start.last(rank), kDim);
  load(n);
  tensor_core::copies_commit();
  tensor_core::copies_wait<0>();
  each_fetched([&](int row, int column) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      set_halves(w_first + tile * kHalfTile + row * kHalfRow + column,
                 four(W_first + tile * kTile + row * kRow + column));
    }
  });

  for (int64_t chunk = 0; chunk < p.C; ++chunk) {
    const Place at{chunk * p.N + n, kHidden, kT};
    const bool ends = chunk + 1 == p.C;
    const float* const read_steps = p.read_steps + at.index * kT * kT;
    const int64_t own_place = (at.index * kT + own) * kDim + 2 * lane(), hidden = at.hidden(rank);
    const float2 target = pair(p.target + own_place), own_steps = pair(read_steps + own * kT + 2 * lane());
    if (threadIdx.x < kT) {
      const int64_t token = at.index * kT + threadIdx.x;
      steps[threadIdx.x] = __float2half(kStepScale * p.steps[token]);
      momentum_steps[threadIdx.x] = __float2half(kStepScale * p.momentum_steps[token]);
      read_keep[threadIdx.x] = p.read_keep[token], read_carry[threadIdx.x] = p.read_carry[token];
    }
    const float keep = p.keep[at.index], carry = p.carry[at.index], momentum_keep = p.momentum_keep[at.index];
    Tile step;
    read(step, read_steps, kT);
    set_part(K, next_k);
    set_part(Q, next_q);
    __syncthreads();
    const auto mixed = [&](Tile& by_W, const Tile& by_S) {
      elements(by_W, [&](float& a, int m, int e) {
        const int row = Tile::row() + row_of(e);
        a = read_keep[row] * a + read_carry[row] * by_S.c[m][e];
      });
    };

    // The first layer at k and, but for the chunk's own steps, at q.
    Tile z, x;
    {
      Tile by_S, overlap;
      const Left keys(K), queries(Q);
      const Right W(w_first), S(s_first);
      const RightAcross keys_across(K);
      each_step<4>([&](int n) {
        const Fragment q = queries(n), w = W(n);
        add_product(z, keys(n), w);
        add_product(x, q, w);
        add_product(by_S, q, S(n));
        add_product(overlap, q, keys_across(n));
      });
      mixed(x, by_S);
      elements(overlap, [&](float& a, int m, int e) { a *= -kStepScale * step.c[m][e]; });
      write_halves(overlap, P);
    }
    if (p.for_backward) write(z, first.z + hidden, kHidden);
    const Slopes slopes = activate(z, U);
    __syncthreads();

    // The inner gradients.
    {
      Tile y;
      multiply<4>(y, Left(U), Right(w_last));
      if (chunk > 0) cluster_wait();  // the others have read Z and O
      write(y, Z, kRow);
    }
    cluster_arrive();
    cluster_wait();
    {
      float2 y = sum_of_blocks(Z + own * kRow + 2 * lane());
      const float2 g = loss.gradient(y, target);
      if (p.for_backward) set_pair(last.z + own_place, y.x, y.y), set_pair(last.g + own_place, g.x, g.y);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        set_halves(of_block(B + own * kHalfRow + 2 * lane(), block), g.x, g.y);
      }
    }
    cluster_arrive();
    cluster_wait();
    {
      Tile t;
      multiply<4>(t, Left(B), RightAcross(w_last));
      if (p.for_backward) write(t, p.t + hidden, kHidden);
      elements(t, [&](float& a, int m, int e) { a *= slopes(m, e); });
      write_halves(t, G);
    }
    __syncthreads();

    // The outputs at q.
    {
      Tile by_steps;
      multiply<4>(by_steps, Left(P), Right(G));
      elements(x, [&](float& a, int m, int e) { a += by_steps.c[m][e] / kStepScale; });
    }
    if (p.for_backward) write(x, p.x + hidden, kHidden);
    activate(x, X);
    __syncthreads();
    Tile y, overlap;
    {
      Tile by_S;
      const Left inputs(X);
      const Right W(w_last), S(s_last);
      const RightAcross at_keys(U);
      each_step<4>([&](int n) {
        const Fragment a = inputs(n);
        add_product(y, a, W(n));
        add_product(by_S, a, S(n));
        add_product(overlap, a, at_keys(n));
      });
      mixed(y, by_S);
    }
    __syncthreads();
    write(y, Z, kRow);
    write(overlap, O, kRow);
    cluster_arrive();

    // The state after the chunk. Where it is not wanted there is none.
    const Place after{ends ? n : at.index + p.N, kHidden, kT};
    const auto advance = [&](const Half* u, const Half* g, float* W, float* S, Half* w, Half* s, float* to_W,
                             float* to_S, int row) {
      Tile by, by_momentum;
      multiply_scaled<4>(by, by_momentum, LeftAcross(u), Right(g), steps, momentum_steps);
      each_of_two(by, by_momentum, [&](int i, int j, float2 a, float2 b) {
        float *const at_W = W + i * kRow + j, *const at_S = S + i * kRow + j;
        const float2 before = pair(at_W), momentum = pair(at_S);
        const float2 next_w = make_float2(keep * before.x + carry * momentum.x - a.x / kStepScale,
                                          keep * before.y + carry * momentum.y - a.y / kStepScale),
                     next_s = make_float2(momentum_keep * momentum.x - b.x / kStepScale,
                                          momentum_keep * momentum.y - b.y / kStepScale);
        set_pair(at_W, next_w.x, next_w.y), set_pair(at_S, next_s.x, next_s.y);
        set_halves(w + i * kHalfRow + j, next_w.x, next_w.y), set_halves(s + i * kHalfRow + j, next_s.x, next_s.y);
        if (!p.for_backward && !ends) return;
        set_pair(to_W + i * row + j, next_w.x, next_w.y), set_pair(to_S + i * row + j, next_s.x, next_s.y);
      });
    };
    if (!ends || last.W_end) {
      advance(K, G, W_first, S_first, w_first, s_first, (ends ? first.W_end : first.W) + after.first(rank),
              (ends ? first.S_end : first.S) + after.first(rank), kHidden);
      advance(U, B, W_last, S_last, w_last, s_last, (ends ? last.W_end : last.W) + after.last(rank),
              (ends ? last.S_end : last.S) + after.last(rank), kDim);
    }
    cluster_wait();

    // The own tokens' outputs. P: the last layer's steps.
    {
      const float2 sum = sum_of_blocks(O + own * kRow + 2 * lane()), out = sum_of_blocks(Z + own * kRow + 2 * lane());
      if (p.for_backward) set_pair(p.overlap + (at.index * kT + own) * kT + 2 * lane(), sum.x, sum.y);
      set_halves(P + warp() * kHalfRow + 2 * lane(), -kStepScale * sum.x * own_steps.x,
                 -kStepScale * sum.y * own_steps.y);
      set_pair(own_outputs + warp() * kRow + 2 * lane(), out.x, out.y);
    }
    cluster_arrive();
    __syncthreads();
    if (!ends) {
      load(at.index + p.N);
      prefetch_part(at.index + p.N, rank, p.read_steps, p.target);
    }
    if (Tile::row() == 0) {  // has kOwned rows
      Tile out;
      multiply<4>(out, Left(P), Right(B));
      out.each([&](int i, int j, float& a, float& b) {
        const float2 sum = pair(own_outputs + i * kRow + j);
        set_pair(p.out + (at.index * kT + rank * kOwned + i) * kDim + j, sum.x + a / kStepScale,
                 sum.y + b / kStepScale);
      });
    }
  }
  cluster_wait();  // until then the others read this block's shared memory
}

bool forward_in_cluster(const FastWeightsProblem& p, cudaStream_t stream) {
  if (!serves(p, forward_cluster)) return false;
  launch(forward_cluster, kThreads, kBytes, p, stream, /*heads=*/1, kBlocks);
  return true;
}

}  // namespace lazy::ops::cuda::learning
