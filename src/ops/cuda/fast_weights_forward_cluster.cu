// The forward pass of fast weights of two layers with momentum, over clusters of blocks. u and the first layer's g are
// not written: the backward pass computes them.
#include "ops/cuda/fast_weights_cluster.cuh"

namespace lazy::ops::cuda::learning {

using namespace spread;

namespace {

// Tiles of tokens have rows at another distance: 4 more than a multiple of 32, where each lane of a left factor reads
// one number.
constexpr int kLeft = kT * kStep;
using Left = LeftRows<kStep>;
using Weights = RightRows<kRow, true>;

constexpr int kBytes = (6 * kTile + 6 * kLeft + 4 * kT) * static_cast<int>(sizeof(float));
static_assert(kBytes <= kMostBytes);

}  // namespace

__global__ void __launch_bounds__(kThreads, 1) forward_cluster(const __grid_constant__ FastWeightsProblem p) {
  if (!kClusters) return;
  float *const W_first = shared_memory(), *const S_first = W_first + kTile;
  float *const W_last = S_first + kTile, *const S_last = W_last + kTile;
  float *const G = S_last + kTile, *const B = G + kTile;  // the gradients by the first and the last layer's outputs
  float *const K = B + kTile, *const Q = K + kLeft;
  float *const U = Q + kLeft, *const X = U + kLeft;  // the last layer's inputs at k and q; X then: part of its overlap
  float *const P = X + kLeft, *const Z = P + kLeft;  // a layer's steps; part of the last one's output
  float *const steps = Z + kLeft, *const momentum_steps = steps + kT, *const read_keep = momentum_steps + kT,
               *const read_carry = read_keep + kT;
  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  const int64_t n = blockIdx.x / kBlocks;
  const int own = rank * kOwned + warp();  // the warp's token, for the cluster
  const FastWeightsLayer &first = p.first, &last = p.last;
  const Gelu act{p.tanh};
  const InnerLoss loss(p, n);
  const auto load = [&](int64_t index) {
    fetch_tile<kStep>(K, p.k + index * kT * kDim, kDim);
    fetch_tile<kStep>(Q, p.q + index * kT * kDim, kDim);
  };
  const Place start{n, kHidden, kT};
  fetch_tile<kRow>(W_first, first.W + start.first(rank), kHidden);
  fetch_tile<kRow>(S_first, first.S + start.first(rank), kHidden);
  fetch_tile<kRow>(W_last, last.W + start.last(rank), kDim);
  fetch_tile<kRow>(S_last, last.S + start.last(rank), kDim);
  load(n);

  for (int64_t chunk = 0; chunk < p.C; ++chunk) {
    const Place at{chunk * p.N + n, kHidden, kT};
    const bool ends = chunk + 1 == p.C;
    const float* const read_steps = p.read_steps + at.index * kT * kT;
    const int64_t own_place = (at.index * kT + own) * kDim + 2 * lane(), hidden = at.hidden(rank);
    const float2 target = pair(p.target + own_place), own_steps = pair(read_steps + own * kT + 2 * lane());
    if (threadIdx.x < kT) {
      const int64_t token = at.index * kT + threadIdx.x;
      steps[threadIdx.x] = p.steps[token], momentum_steps[threadIdx.x] = p.momentum_steps[token];
      read_keep[threadIdx.x] = p.read_keep[token], read_carry[threadIdx.x] = p.read_carry[token];
    }
    const float keep = p.keep[at.index], carry = p.carry[at.index], momentum_keep = p.momentum_keep[at.index];
    Tile step;
    read(step, read_steps, kT);
    arrive_rounded<kStep>([] {}, K, Q);
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
      const Left queries(Q);
      const Weights W(W_first);
      products(term(z, Left(K), W), term(x, queries, W), term(by_S, queries, Weights(S_first)),
               term(overlap, queries, RightColumns<kStep>(K)));
      mixed(x, by_S);
      elements(overlap, [&](float& a, int m, int e) { a *= -step.c[m][e]; });
      write_rounded(overlap, P, kStep);
    }
    z.each([&](int i, int j, float& a, float& b) {
      if (p.for_backward) set_pair(first.z + hidden + i * kHidden + j, a, b);
      set_rounded_pair(U + i * kStep + j, act.value(a), act.value(b));
    });
    __syncthreads();

    // The inner gradients.
    {
      Tile y;
      products(term(y, Left(U), Weights(W_last)));
      if (chunk > 0) cluster_wait();  // the others have read X and Z
      write(y, Z, kStep);
    }
    cluster_arrive();
    cluster_wait();
    {
      float2 y = sum_of_blocks(Z + own * kStep + 2 * lane());
      const float2 g = loss.gradient(y, target), to_all = rounded_pair(g.x, g.y);
      if (p.for_backward) set_pair(last.z + own_place, y.x, y.y), set_pair(last.g + own_place, g.x, g.y);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        set_pair(of_block(B + own * kRow + 2 * lane(), block), to_all.x, to_all.y);
      }
    }
    cluster_arrive();
    cluster_wait();
    {
      Tile t;
      products(term(t, LeftPairs<kRow>(B), RightPairs<kRow, true>(W_last)));
      each_of_two(t, z, [&](int i, int j, float2 by, float2 z) {
        if (p.for_backward) set_pair(p.t + hidden + i * kHidden + j, by.x, by.y);
        set_rounded_pair(G + i * kRow + j, by.x * act.slope(z.x), by.y * act.slope(z.y));
      });
    }
    __syncthreads();

    // The outputs at q.
    products(term(x, Left(P), RightRows<kRow>(G)));
    x.each([&](int i, int j, float& a, float& b) {
      if (p.for_backward) set_pair(p.x + hidden + i * kHidden + j, a, b);
      set_rounded_pair(X + i * kStep + j, act.value(a), act.value(b));
    });
    __syncthreads();
    Tile y, overlap;
    {
      Tile by_S;
      const Left inputs(X);
      products(term(y, inputs, Weights(W_last)), term(by_S, inputs, Weights(S_last)),
               term(overlap, inputs, RightColumns<kStep>(U)));
      mixed(y, by_S);
    }
    __syncthreads();
    write(y, Z, kStep);
    write(overlap, X, kStep);
    cluster_arrive();

    // The state after the chunk. Where it is not wanted there is none.
    const Place after{ends ? n : at.index + p.N, kHidden, kT};
    const auto advance = [&](const float* u, const float* g, float* W, float* S, float* to_W, float* to_S, int row) {
      Tile by, by_momentum;
      const RightRows<kRow> right(g);
      products(term(by, ScaledLeftColumns<kStep>(u, steps), right),
               term(by_momentum, ScaledLeftColumns<kStep>(u, momentum_steps), right));
      each_of_two(by, by_momentum, [&](int i, int j, float2 a, float2 b) {
        float *const at_W = W + i * kRow + j, *const at_S = S + i * kRow + j;
        const float2 w = pair(at_W), s = pair(at_S);
        const float2 next_w = make_float2(keep * w.x + carry * s.x - a.x, keep * w.y + carry * s.y - a.y),
                     next_s = make_float2(momentum_keep * s.x - b.x, momentum_keep * s.y - b.y);
        set_pair(at_W, next_w.x, next_w.y), set_pair(at_S, next_s.x, next_s.y);
        if (!p.for_backward && !ends) return;
        set_pair(to_W + i * row + j, next_w.x, next_w.y), set_pair(to_S + i * row + j, next_s.x, next_s.y);
      });
    };
    if (!ends || last.W_end) {
      advance(K, G, W_first, S_first, (ends ? first.W_end : first.W) + after.first(rank),
              (ends ? first.S_end : first.S) + after.first(rank), kHidden);
      advance(U, B, W_last, S_last, (ends ? last.W_end : last.W) + after.last(rank),
              (ends ? last.S_end : last.S) + after.last(rank), kDim);
    }
    cluster_wait();

    // The own tokens' outputs. P: the last layer's steps, then what it gives without them.
    {
      float* const row = P + warp() * kStep + 2 * lane();
      const float2 sum = sum_of_blocks(X + own * kStep + 2 * lane()), out = sum_of_blocks(Z + own * kStep + 2 * lane());
      if (p.for_backward) set_pair(p.overlap + (at.index * kT + own) * kT + 2 * lane(), sum.x, sum.y);
      set_rounded_pair(row, -sum.x * own_steps.x, -sum.y * own_steps.y);
      set_pair(row + kOwned * kStep, out.x, out.y);
    }
    cluster_arrive();
    __syncthreads();
    if (!ends) {
      load(at.index + p.N);
      prefetch_part(at.index + p.N, rank, p.read_steps, p.target);
    }
    Share<kWarps, kOwned, kDim> out;
    product<kT>(out, rounded(Rows{P}), rounded(RowsOf<kRow>{B}));
    out.each([&](int i, int j, float& a, float& b) {
      const float2 sum = pair(P + (kOwned + i) * kStep + j);
      set_pair(p.out + (at.index * kT + rank * kOwned + i) * kDim + j, sum.x + a, sum.y + b);
    });
  }
  cluster_wait();  // until then the others read this block's shared memory
}

bool forward_in_cluster(const FastWeightsProblem& p, cudaStream_t stream) {
  if (!serves(p, forward_cluster)) return false;
  launch(forward_cluster, kThreads, kBytes, p, stream, /*heads=*/1, kBlocks);
  return true;
}

}  // namespace lazy::ops::cuda::learning
