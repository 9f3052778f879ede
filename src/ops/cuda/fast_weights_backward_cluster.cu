// The backward pass of fast weights of two layers with momentum, over clusters of blocks. The gradients with respect to
// a block's part of the state stay in its shared memory from chunk to chunk; the state that each chunk started with is
// read twice or less.
#include "ops/cuda/fast_weights_cluster.cuh"

namespace lazy::ops::cuda::learning {

using namespace spread;

namespace {

using Left = LeftRows<kRow>;
using LeftAcross = LeftColumns<kRow>;
using ScaledAcross = ScaledLeftColumns<kRow>;
using Right = RightRows<kRow>;
using Pairs = LeftPairs<kRow>;
using PairsAcross = RightPairs<kRow>;
// Of what is not rounded, the gradients with respect to the state.
using State = RightRows<kRow, true>;
using StateAcross = RightPairs<kRow, true>;

constexpr int kGroups = Tile::kColumnGroups;
constexpr int kBytes =
    (12 * kTile + 4 * kT + 4 * kGroups * kT + 3 * kWarps + kOwned * kDim) * static_cast<int>(sizeof(float));
static_assert(kBytes <= kMostBytes);

// to = factor[row] a + more[row] b
__device__ void weighted(Tile& to, const float* factor, const Tile& a, const float* more, const Tile& b) {
  elements(to, [&](float& x, int m, int e) {
    const int row = Tile::row() + row_of(e);
    x = factor[row] * a.c[m][e] + more[row] * b.c[m][e];
  });
}

}  // namespace

__global__ void __launch_bounds__(kThreads, 1) backward_cluster(const __grid_constant__ FastWeightsProblem p) {
  if (!kClusters) return;
  float *const dW_first = shared_memory(), *const dS_first = dW_first + kTile;
  float *const dW_last = dS_first + kTile, *const dS_last = dW_last + kTile;
  // Eight tiles, most for several things one after the other.
  float *const D = dS_last + kTile, *const B = D + kTile, *const W = B + kTile, *const S = W + kTile;
  float *const U = S + kTile, *const V = U + kTile, *const R = V + kTile, *const Q = R + kTile;
  // D: d_out; the first layer's steps; the gradients by its overlap times steps.
  float *const P = D, *const R_first = D;
  // B: the last layer's g; its inputs at k, a second time. U: these for the first time; k.
  float *const inputs = B, *const K = U;
  // W and S: of the last layer; of the first. S: W of the last layer, a second time; what this block adds to d_q.
  float *const W_again = S, *const by_q = S;
  // V: the last layer's inputs at q; the first one's g; the gradients by t; those by the last output at k; d_k, as d_q.
  float *const G = V, *const T = V, *const Y = V, *const by_k = V;
  // R: the gradients by the last layer's overlap; by the first one's output at q; by the last g; by the first output at
  // k.
  float *const X = R, *const by_g = R, *const Z = R;
  float *const steps = Q + kTile, *const momentum_steps = steps + kT, *const read_keep = momentum_steps + kT,
               *const read_carry = read_keep + kT;
  float* const sums = read_carry + kT;  // by token: what each group of columns adds to a gradient
  float *const sum_steps = sums, *const sum_momentum = sums + kGroups * kT, *const sum_keep = sums + 2 * kGroups * kT,
               *const sum_carry = sums + 3 * kGroups * kT;
  float *const dots = sums + 4 * kGroups * kT, *const own_overlap = dots + 3 * kWarps;

  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  const int n = static_cast<int>(blockIdx.x / kBlocks);
  const int own = rank * kOwned + warp();  // the warp's token, for the cluster
  const bool has_own = Tile::row() == rank * kOwned;
  const FastWeightsLayer &first = p.first, &last = p.last;
  float2 by_weight{}, by_bias{};  // of the norm, by the warp's tokens
  const Place start{n, kHidden, kT};
  fetch_tile<kRow>(dW_first, first.d_W + start.first(rank), kHidden);
  fetch_tile<kRow>(dS_first, first.d_S + start.first(rank), kHidden);
  fetch_tile<kRow>(dW_last, last.d_W + start.last(rank), kDim);
  fetch_tile<kRow>(dS_last, last.d_S + start.last(rank), kDim);
  const auto load = [&](int64_t index) {
    const Place at{index, kHidden, kT};
    fetch_tile<kRow>(D, at.tokens(p.d_out), kDim);
    fetch_tile<kRow>(B, at.tokens(last.g), kDim);
    fetch_tile<kRow>(W, last.W + at.last(rank), kDim);
    fetch_tile<kRow>(Q, at.tokens(p.q), kDim);
  };
  load((p.C - 1) * p.N + n);

  for (int chunk = static_cast<int>(p.C) - 1; chunk >= 0; --chunk) {
    const Place at{chunk * p.N + n, kHidden, kT};
    const float* const read_steps = p.read_steps + at.index * kT * kT;
    const float* const overlaps = p.overlap + at.index * kT * kT;
    float* const d_read_steps = p.d_read_steps + at.index * kT * kT;
    const auto own_row = [&](auto* all) { return at.tokens(all) + own * kDim + 2 * lane(); };
    const int64_t hidden = at.hidden(rank);
    float d_keep = 0, d_carry = 0, d_momentum_keep = 0;
    Tile z, x;
    read(z, first.z + hidden, kHidden);
    read(x, p.x + hidden, kHidden);
    if (chunk + 1 < p.C) cluster_wait();  // the others have read S, V and the sums
    fetch_tile<kRow>(S, last.S + at.last(rank), kDim);
    if (threadIdx.x < kT) {
      const int64_t token = at.index * kT + threadIdx.x;
      steps[threadIdx.x] = -p.steps[token], momentum_steps[threadIdx.x] = -p.momentum_steps[token];
      read_keep[threadIdx.x] = p.read_keep[token], read_carry[threadIdx.x] = p.read_carry[token];
    }
    for (int i = threadIdx.x; i < 4 * kGroups * kT; i += kThreads) sums[i] = 0;
    // z and x become the slopes.
    {
      Tile u, input;
      const auto activate = [&](const Gelu act) {
        elements(z, [&](float& a, int m, int e) {
          u.c[m][e] = act.value(a);
          a = act.slope(a);
        });
        elements(x, [&](float& a, int m, int e) {
          input.c[m][e] = act.value(a);
          a = act.slope(a);
        });
      };
      p.tanh ? activate(Gelu{true}) : activate(Gelu{false});
      write_rounded(u, U, kRow);
      write_rounded(input, V, kRow);
    }
    // Rounds W and S of a layer. What the gradients dW and dS of the state after the chunk give its coefficients.
    const auto round_state = [&](const float* dW, const float* dS) {
      each_fetched<kRow>([&](int place) {
        float4 &w = four(W + place), &s = four(S + place);
        const float4 d = *reinterpret_cast<const float4*>(dW + place), e = *reinterpret_cast<const float4*>(dS + place);
        d_keep += dot_four(w, d), d_carry += dot_four(s, d), d_momentum_keep += dot_four(s, e);
        round_four(w), round_four(s);
      });
    };
    arrive_rounded<kRow>([&] { round_state(dW_last, dS_last); }, D, B, Q);

    // Of products with W and with S, read from what lies at `a`: what they give the tokens' factors.
    const auto add_read_sums = [&](Tile& by_W, Tile& by_S, const auto& a) {
      const auto dot = [&](int i, int j, float& x, float& y) {
        const float2 input = a(i, j);
        return x * input.x + y * input.y;
      };
      by_W.add_rows(sum_keep, dot);
      by_S.add_rows(sum_carry, dot);
    };
    const auto add_step_sums = [&](Tile& by_W, Tile& by_S, const auto& g) {
      const auto dot = [&](int i, int j, float& x, float& y) {
        const float2 by = g(i, j);
        return -(x * by.x + y * by.y);
      };
      by_W.add_rows(sum_steps, dot);
      by_S.add_rows(sum_momentum, dot);
    };
    const auto in_tile = [](const float* tile) { return [tile](int i, int j) { return pair(tile + i * kRow + j); }; };
    // d_W and d_S before the update and the reading of a layer from those after it; a: its inputs at q, d_y: by its
    // outputs.
    const auto through_state = [&](const float* a, const float* d_y, float* dW, float* dS) {
      Tile by_W, by_S;
      products(term(by_W, ScaledAcross(a, read_keep), Right(d_y)), term(by_S, ScaledAcross(a, read_carry), Right(d_y)));
      const float keep = p.keep[at.index], carry = p.carry[at.index], momentum_keep = p.momentum_keep[at.index];
      each_of_two(by_W, by_S, [&](int i, int j, float2 w, float2 s) {
        float *const at_W = dW + i * kRow + j, *const at_S = dS + i * kRow + j;
        const float2 d = pair(at_W), e = pair(at_S);
        set_pair(at_W, w.x + keep * d.x, w.y + keep * d.y);
        set_pair(at_S, s.x + carry * d.x + momentum_keep * e.x, s.y + carry * d.y + momentum_keep * e.y);
      });
    };

    // The last layer: through its reading to its input at q, through its update to its input at k; its overlap.
    Tile d_a, d_u;
    {
      Tile by_W, by_S, d_steps;
      products(term(by_W, Pairs(D), PairsAcross(W)), term(by_S, Pairs(D), PairsAcross(S)),
               term(d_steps, Pairs(D), PairsAcross(B)));
      add_read_sums(by_W, by_S, in_tile(V));
      weighted(d_a, read_keep, by_W, read_carry, by_S);
      d_steps.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * kT + j);
        set_rounded_pair(R + i * kRow + j, -a * step.x, -b * step.y);
        if (!has_own) return;
        const float2 overlap = pair(overlaps + i * kT + j);
        set_pair(d_read_steps + i * kT + j, -a * overlap.x, -b * overlap.y);
      });
    }
    {
      Tile by_W, by_S;
      products(term(by_W, Pairs(B), StateAcross(dW_last)), term(by_S, Pairs(B), StateAcross(dS_last)));
      weighted(d_u, steps, by_W, momentum_steps, by_S);
    }
    __syncthreads();
    fetch_tile<kRow>(W, first.W + at.first(rank), kHidden);
    fetch_tile<kRow>(S, first.S + at.first(rank), kHidden);
    // To its g.
    Tile d_g;
    {
      Tile by_W, by_S;
      products(term(by_W, Left(U), State(dW_last)), term(by_S, Left(U), State(dS_last)), term(d_a, Left(R), Right(U)),
               term(d_u, LeftAcross(R), Right(V)));
      add_step_sums(by_W, by_S, in_tile(B));
      weighted(d_g, steps, by_W, momentum_steps, by_S);
      product<kOwned>(
          d_g,
          [&](int j, int i) {
            const int from = (rank * kOwned + i) * kT + j;
            return -read_steps[from] * overlaps[from];
          },
          rounded(RowsOf<kRow>{D + rank * kOwned * kRow}));
    }
    __syncthreads();
    fetch_tile<kRow>(K, at.tokens(p.k), kDim);
    elements(d_a, [&](float& a, int m, int e) { a *= x.c[m][e]; });
    write_rounded(d_a, X, kRow);
    through_state(V, D, dW_last, dS_last);
    Tile t;  // what d_z takes from t's gradient
    {
      Tile z_again, g;
      read(t, p.t + hidden, kHidden);
      read(z_again, first.z + hidden, kHidden);
      arrive_rounded<kRow>([&] { round_state(dW_first, dS_first); }, K);
      const auto bend = [&](const Gelu act) {
        elements(t, [&](float& a, int m, int e) {
          g.c[m][e] = a * z.c[m][e];
          a *= act.bend(z_again.c[m][e]);
        });
      };
      p.tanh ? bend(Gelu{true}) : bend(Gelu{false});
      write_rounded(g, G, kRow);
    }

    // The first layer, the same.
    Tile d_q, d_first_g;
    {
      Tile overlap;
      products(term(overlap, Pairs(Q), PairsAcross(K)));
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * kT + j);
        set_rounded_pair(P + i * kRow + j, -a * step.x, -b * step.y);
        if (has_own) set_pair(own_overlap + i % kOwned * kDim + j, a, b);
      });
    }
    {
      Tile by_W, by_S;
      products(term(by_W, Pairs(X), PairsAcross(W)), term(by_S, Pairs(X), PairsAcross(S)));
      add_read_sums(by_W, by_S, in_tile(Q));
      weighted(d_q, read_keep, by_W, read_carry, by_S);
    }
    {
      Tile by_W, by_S;
      products(term(by_W, Left(K), State(dW_first)), term(by_S, Left(K), State(dS_first)));
      add_step_sums(by_W, by_S, in_tile(G));
      weighted(d_first_g, steps, by_W, momentum_steps, by_S);
    }
    __syncthreads();
    fetch_tile<kRow>(W_again, last.W + at.last(rank), kDim);
    products(term(d_first_g, LeftAcross(P), Right(X)));
    Tile d_k;
    {
      Tile by_W, by_S, d_steps;
      products(term(by_W, Pairs(G), StateAcross(dW_first)), term(by_S, Pairs(G), StateAcross(dS_first)));
      weighted(d_k, steps, by_W, momentum_steps, by_S);
      products(term(d_steps, Pairs(X), PairsAcross(G)));
      elements(d_first_g, [&](float& a, int m, int e) {
        t.c[m][e] *= a;
        a *= z.c[m][e];
      });
      __syncthreads();
      write_rounded(d_first_g, T, kRow);
      write(d_steps, R_first, kRow);
    }
    through_state(Q, X, dW_first, dS_first);
    arrive_rounded<kRow>([] {}, W_again);

    // Through the inner gradient's way from the last layer to the first.
    Tile u;
    read(u, first.z + hidden, kHidden);
    const float2 y = pair(own_row(last.z)), target = pair(own_row(p.target)), own_g = pair(own_row(last.g));
    products(term(d_g, Left(T), Right(W_again)));
    write(d_g, by_g, kRow);
    {
      Tile to;
      products(term(to, LeftAcross(T), Right(B)));
      add_to(to, dW_last, kRow);
    }
    cluster_arrive();
    cluster_wait();

    // Through the inner loss, and to the steps of the first layer, for the own tokens.
    {
      float2 d_target;
      const float2 d_y = InnerLoss(p, n).backward(y, target, own_g, sum_of_blocks(by_g + own * kRow + 2 * lane()),
                                                  d_target, by_weight, by_bias);
      set_pair(own_row(p.d_target), d_target.x, d_target.y);
      const float2 to_all = rounded_pair(d_y.x, d_y.y);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        set_pair(of_block(Y + own * kRow + 2 * lane(), block), to_all.x, to_all.y);
      }
    }
    if (has_own) {
      Tile{}.each([&](int i, int j, float&, float&) {
        const float2 d = sum_of_blocks(R_first + i * kRow + j), step = pair(read_steps + i * kT + j),
                     overlap = pair(own_overlap + i % kOwned * kDim + j);
        float* const to = d_read_steps + i * kT + j;
        const float2 before = pair(to);
        set_pair(to, before.x - overlap.x * d.x, before.y - overlap.y * d.y);
        set_rounded_pair(R_first + i * kRow + j, -d.x * step.x, -d.y * step.y);
      });
    }
    if (chunk > 0) {
      // What the next chunk starts with, to the L2 cache: of four tiles, a line for each thread.
      const Place next{at.index - p.N, kHidden, kT};
      const int line = thread() % (2 * kT), tensor = thread() / (2 * kT);
      const float* const all = tensor == 0 ? first.z : tensor == 1 ? p.t : p.x;
      prefetch(tensor == 3 ? last.S + next.last(rank) + 32 * line
                           : all + next.hidden(rank) + line / 2 * kHidden + line % 2 * 32);
      prefetch_part(next.index, rank, p.read_steps, p.overlap, last.z, p.target);
    }
    const auto activate_again = [&](const Gelu act) { elements(u, [&](float& a, int, int) { a = act.value(a); }); };
    p.tanh ? activate_again(Gelu{true}) : activate_again(Gelu{false});
    write_rounded(u, inputs, kRow);
    cluster_arrive();
    cluster_wait();

    // Through the layers at k.
    {
      Tile back;
      products(term(back, Pairs(Y), PairsAcross(W_again)));
      elements(t, [&](float& a, int m, int e) { a += (back.c[m][e] + d_u.c[m][e]) * z.c[m][e]; });
      write_rounded(t, Z, kRow);
    }
    {
      Tile to;
      products(term(to, LeftAcross(inputs), Right(Y)));
      add_to(to, dW_last, kRow);
    }
    product<kOwned>(d_k, rounded(ColumnsOf<kRow>{R_first + rank * kOwned * kRow}),
                    rounded(RowsOf<kRow>{Q + rank * kOwned * kRow}));
    if (has_own) products(term(d_q, Left(R_first), Right(K)));
    __syncthreads();
    write(d_q, by_q, kRow);
    products(term(d_k, Pairs(Z), PairsAcross(W)));
    write(d_k, by_k, kRow);
    {
      Tile to;
      products(term(to, LeftAcross(K), Right(Z)));
      add_to(to, dW_first, kRow);
    }
    {
      const float all[3] = {warp_sum(d_keep), warp_sum(d_carry), warp_sum(d_momentum_keep)};
      if (lane() == 0) {
#pragma unroll
        for (int i = 0; i < 3; ++i) dots[i * kWarps + warp()] = all[i];
      }
    }
    cluster_arrive();
    cluster_wait();

    if (chunk > 0) load(at.index - p.N);
    {
      const float2 d_q = sum_of_blocks(by_q + own * kRow + 2 * lane()),
                   d_k = sum_of_blocks(by_k + own * kRow + 2 * lane());
      set_pair(own_row(p.d_q), d_q.x, d_q.y);
      set_pair(own_row(p.d_k), d_k.x, d_k.y);
    }
    if (threadIdx.x < 4 * kOwned) {
      const int which = static_cast<int>(threadIdx.x) / kOwned,
                token = rank * kOwned + static_cast<int>(threadIdx.x) % kOwned;
      float sum = 0;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float* const from = of_block(sums, block) + which * kGroups * kT + token;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) sum += from[group * kT];
      }
      float* const all = which == 0   ? p.d_steps
                         : which == 1 ? p.d_momentum_steps
                         : which == 2 ? p.d_read_keep
                                      : p.d_read_carry;
      all[at.index * kT + token] = sum;
    }
    if (rank == 0 && warp() < 3) {
      float x = 0;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float* const from = of_block(dots, block);
        x += lane() < kWarps ? from[warp() * kWarps + lane()] : 0;
      }
      x = warp_sum(x);
      if (lane() == 0) (warp() == 0 ? p.d_keep : warp() == 1 ? p.d_carry : p.d_momentum_keep)[at.index] = x;
    }
    cluster_arrive();
  }
  cluster_wait();

  const auto store_part = [&](float* to, const float* tile, int step) {
#pragma unroll
    for (int i = thread(); i < kDim * kDim / 4; i += kThreads) {
      const int row = i / (kDim / 4), column = i % (kDim / 4) * 4;
      *reinterpret_cast<float4*>(to + row * step + column) =
          *reinterpret_cast<const float4*>(tile + row * kRow + column);
    }
  };
  store_part(first.d_W + start.first(rank), dW_first, kHidden);
  store_part(first.d_S + start.first(rank), dS_first, kHidden);
  store_part(last.d_W + start.last(rank), dW_last, kDim);
  store_part(last.d_S + start.last(rank), dS_last, kDim);
  if (!p.norm_weight) return;
  set_pair(D + warp() * kRow + 2 * lane(), by_weight.x, by_weight.y);
  set_pair(B + warp() * kRow + 2 * lane(), by_bias.x, by_bias.y);
  cluster_arrive();
  cluster_wait();
  if (rank == 0 && threadIdx.x < 2 * kDim) {
    float sum = 0;
    for (int block = 0; block < kBlocks; ++block) {
      const float* const from = of_block(threadIdx.x < kDim ? D : B, block) + threadIdx.x % kDim;
      for (int row = 0; row < kWarps; ++row) sum += from[row * kRow];
    }
    (threadIdx.x < kDim ? p.d_norm_weight : p.d_norm_bias)[n * kDim + threadIdx.x % kDim] = sum;
  }
  cluster_arrive();
  cluster_wait();
}

bool backward_in_cluster(const FastWeightsProblem& p, cudaStream_t stream) {
  if (!serves(p, backward_cluster)) return false;
  launch(backward_cluster, kThreads, kBytes, p, stream, /*heads=*/1, kBlocks);
  return true;
}

}  // namespace lazy::ops::cuda::learning
