// The backward pass of fast weights of two layers with momentum, over clusters of blocks. The gradients with respect to
// a block's part of the state stay in its shared memory from chunk to chunk; the state that each chunk started with is
// read twice or less.
//
// Gradients are fp16 as factors of products. So that they are there what they are in fp32, a sequence and head has all
// of them multiplied by a power of two, by which its largest ones from outside are kLargest; and those that steps made,
// which may be as small as these, by kStepScale.
#include "ops/cuda/fast_weights_cluster.cuh"

namespace lazy::ops::cuda::learning {

using namespace spread;

namespace {

constexpr float kLargest = 1.0f / 32;
constexpr int kGroups = Tile::kColumnGroups;
constexpr int kBytes =
    (6 * kTile + 4 * kT + 4 * kGroups * kT + 6 * kWarps + 4 + kOwned * kDim) * static_cast<int>(sizeof(float)) +
    (12 * kHalfTile + 2 * kT) * static_cast<int>(sizeof(Half));
static_assert(kBytes <= kMostBytes);

__device__ float4 scaled_four(float factor, const float4& x) {
  return make_float4(factor * x.x, factor * x.y, factor * x.z, factor * x.w);
}
// By W and S of a layer: what the gradients dW and dS of the state after the chunk give its coefficients.
struct Dots {
  float keep = 0, carry = 0, momentum_keep = 0;
  __device__ void add(const float4& w, const float4& s, const float* dW, const float* dS) {
    const float4 d = *reinterpret_cast<const float4*>(dW), e = *reinterpret_cast<const float4*>(dS);
    keep += dot_four(w, d), carry += dot_four(s, d), momentum_keep += dot_four(s, e);
  }
  __device__ void write(float* to) const {
    const float all[3] = {warp_sum(keep), warp_sum(carry), warp_sum(momentum_keep)};
    if (lane() != 0) return;
#pragma unroll
    for (int n = 0; n < 3; ++n) to[n * kWarps + warp()] = all[n];
  }
};
// The power of two that makes `most` kLargest, or nearly.
__device__ float scale_for(float most) {
  const int exponent = max(-100, min(100, ilogbf(most)));
  return most > 0 ? ldexpf(kLargest, -exponent) : 1;
}

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
  // The gradients with respect to the state, and as factors.
  float *const dW_first = shared_memory(), *const dS_first = dW_first + kTile;
  float *const dW_last = dS_first + kTile, *const dS_last = dW_last + kTile;
  // What is summed over the blocks: the gradients by the last g and by the first layer's overlap; those by q and k.
  // Between chunks' sums: W and S of the first layer.
  float *const sum_0 = dS_last + kTile, *const sum_1 = sum_0 + kTile;
  float *const read_keep = sum_1 + kTile, *const read_carry = read_keep + kT;
  float *const steps = read_carry + kT, *const momentum_steps = steps + kT;
  float* const sums = momentum_steps + kT;  // by token: what each group of columns adds to a gradient
  float *const sum_steps = sums, *const sum_momentum = sums + kGroups * kT, *const sum_keep = sums + 2 * kGroups * kT,
               *const sum_carry = sums + 3 * kGroups * kT;
  // dots: by layer, coefficient and warp.
  float *const dots = sums + 4 * kGroups * kT, *const own_overlap = dots + 6 * kWarps,
               *const by_scale = own_overlap + kOwned * kDim, *const back_scale = by_scale + 1;
  Half *const dw_first = reinterpret_cast<Half*>(by_scale + 4), *const ds_first = dw_first + kHalfTile;
  Half *const dw_last = ds_first + kHalfTile, *const ds_last = dw_last + kHalfTile;
  // Eight tiles, most for several things one after the other.
  Half *const D = ds_last + kHalfTile, *const B = D + kHalfTile, *const W = B + kHalfTile, *const S = W + kHalfTile;
  Half *const U = S + kHalfTile, *const V = U + kHalfTile, *const R = V + kHalfTile, *const Q = R + kHalfTile;
  Half *const keep_factors = Q + kHalfTile, *const carry_factors = keep_factors + kT;
  // D: d_out; the first layer's steps; the gradients by its overlap times steps.
  Half *const P = D, *const R_first = D;
  // B: the last layer's g; its inputs at k, a second time. U: these for the first time; k.
  Half *const inputs = B, *const K = U;
  // W and S: of the last layer; of the first. S: W of the last layer, a second time.
  Half* const W_again = S;
  // V: the last layer's inputs at q; the first one's g; the gradients by t; those by the last output at k.
  Half *const G = V, *const T = V, *const Y = V;
  // R: the gradients by the last layer's overlap; by the first one's output at q; by the first output at k.
  Half *const X = R, *const Z = R;

  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  const int n = static_cast<int>(blockIdx.x / kBlocks);
  const int own = rank * kOwned + warp();  // the warp's token, for the cluster
  const bool has_own = Tile::row() == rank * kOwned;
  const FastWeightsLayer &first = p.first, &last = p.last;
  // By the norm's weight and bias, from the warp's tokens: a thread's four numbers, at the end of a row of a gradient.
  const auto by_norm = [&]() -> float4& {
    const int row = thread() / 2;
    return four(dW_first + row / kDim * kTile + row % kDim * kRow + kDim + thread() % 2 * 4);
  };
  by_norm() = make_float4(0, 0, 0, 0);
  const Place start{n, kHidden, kT};
  const auto fetch_end = [&](float* tile, const float* end, int64_t part, int step) {
    if (end) return fetch_tile(tile, end + part, step);
    each_fetched([&](int row, int column) { four(tile + row * kRow + column) = make_float4(0, 0, 0, 0); });
  };
  fetch_end(dW_first, first.d_W_end, start.first(rank), kHidden);
  fetch_end(dS_first, first.d_S_end, start.first(rank), kHidden);
  fetch_end(dW_last, last.d_W_end, start.last(rank), kDim);
  fetch_end(dS_last, last.d_S_end, start.last(rank), kDim);
  tensor_core::copies_commit();
  float most = 0;
  for (int chunk = 0; chunk < p.C; ++chunk) {
    const float2 d = pair(p.d_out + ((chunk * p.N + n) * kT + own) * kDim + 2 * lane());
    most = fmaxf(most, fmaxf(fabsf(d.x), fabsf(d.y)));
  }
  tensor_core::copies_wait<0>();
  const auto each_gradient = [&](const auto& function) {
    each_fetched([&](int row, int column) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        function(four(dW_first + tile * kTile + row * kRow + column),
                 dw_first + tile * kHalfTile + row * kHalfRow + column);
      }
    });
  };
  each_gradient([&](const float4& x, Half*) {
    most = fmaxf(most, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
  });
  most = warp_max(most);
  if (lane() == 0) dots[warp()] = most;
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) most = fmaxf(most, of_block(dots, block)[lane() % kWarps]);
  cluster_arrive();
  const float scale = scale_for(warp_max(most));
  if (threadIdx.x == 0) *by_scale = scale, *back_scale = 1 / scale;
  each_gradient([&](float4& x, Half* factor) {
    x = scaled_four(scale, x);
    set_halves(factor, x);
  });
  __syncthreads();

  for (int index = static_cast<int>((p.C - 1) * p.N) + n; index >= 0; index -= static_cast<int>(p.N)) {
    const Place at{index, kHidden, kT};
    const auto state = [&](const float* all, const float* of_first_chunk) {
      return index >= p.N ? all : of_first_chunk;
    };
    const float* const read_steps = p.read_steps + at.index * kT * kT;
    const float* const overlaps = p.overlap + at.index * kT * kT;
    float* const d_read_steps = p.d_read_steps + at.index * kT * kT;
    const auto own_row = [&](auto* all) { return at.tokens(all) + own * kDim + 2 * lane(); };
    const int64_t hidden = at.hidden(rank);
    Tile z, x;
    read(z, first.z + hidden, kHidden);
    read(x, p.x + hidden, kHidden);
    Dots of_last;
    {
      float4 d[kFetched], g[kFetched], w[kFetched], s[kFetched];
      read_part(w, state(last.W, last.W_start) + at.last(rank));
      read_part(s, state(last.S, last.S_start) + at.last(rank));
      read_part(d, at.tokens(p.d_out));
      read_part(g, at.tokens(last.g));
      int m = 0;
      each_fetched([&](int row, int column) {
        of_last.add(w[m], s[m], dW_last + row * kRow + column, dS_last + row * kRow + column);
        d[m] = scaled_four(*by_scale, d[m]);
        ++m;
      });
      set_part(W, w), set_part(S, s), set_part(D, d), set_part(B, g);
    }
    cluster_wait();  // the others have read the sums
    fetch_tile(sum_0, state(first.W, first.W_start) + at.first(rank), kHidden);
    fetch_tile(sum_1, state(first.S, first.S_start) + at.first(rank), kHidden);
    tensor_core::copies_commit();
    of_last.write(dots);
    for (int i = threadIdx.x; i < 4 * kGroups * kT; i += kThreads) sums[i] = 0;
    if (threadIdx.x < kT) {
      const int64_t token = at.index * kT + threadIdx.x;
      steps[threadIdx.x] = -kStepScale * p.steps[token];
      momentum_steps[threadIdx.x] = -kStepScale * p.momentum_steps[token];
      const float keep = p.read_keep[token], carry = p.read_carry[token];
      read_keep[threadIdx.x] = keep, keep_factors[threadIdx.x] = __float2half(keep);
      read_carry[threadIdx.x] = carry, carry_factors[threadIdx.x] = __float2half(carry);
    }
    float4 queries[kFetched];
    read_part(queries, at.tokens(p.q));
    const Slopes slopes_k = activate(z, U), slopes_q = activate(x, V);
    set_part(Q, queries);
    __syncthreads();

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
    const auto in_tile = [](const Half* tile) {
      return [tile](int i, int j) { return halves(tile + i * kHalfRow + j); };
    };
    // d_W and d_S before the update and the reading of a layer from those after it; a: its inputs at q, d_y: by its
    // outputs.
    const auto through_state = [&](const Half* a, const Half* d_y, float* dW, float* dS, Half* ds) {
      Tile by_W, by_S;
      multiply_scaled<2>(by_W, by_S, LeftAcross(a), Right(d_y), keep_factors, carry_factors);
      const float keep = p.keep[at.index], carry = p.carry[at.index], momentum_keep = p.momentum_keep[at.index];
      each_of_two(by_W, by_S, [&](int i, int j, float2 w, float2 s) {
        float *const at_W = dW + i * kRow + j, *const at_S = dS + i * kRow + j;
        const float2 d = pair(at_W), e = pair(at_S);
        set_pair(at_W, w.x + keep * d.x, w.y + keep * d.y);
        s = make_float2(s.x + carry * d.x + momentum_keep * e.x, s.y + carry * d.y + momentum_keep * e.y);
        set_pair(at_S, s.x, s.y), set_halves(ds + i * kHalfRow + j, s.x, s.y);
      });
    };
    // dW += steps' part of it; dw: null, or dW as a factor.
    const auto add_steps = [&](Tile& to, float* dW, Half* dw) {
      to.each([&](int i, int j, float& a, float& b) {
        float* const at = dW + i * kRow + j;
        const float2 before = pair(at), after = make_float2(before.x + a / kStepScale, before.y + b / kStepScale);
        set_pair(at, after.x, after.y);
        if (dw) set_halves(dw + i * kHalfRow + j, after.x, after.y);
      });
    };

    // The last layer: through its reading to its input at q, through its update to its input at k; its overlap.
    Tile d_a, d_u;
    {
      Tile by_W, by_S, d_steps;
      const Left by_outputs(D);
      const RightAcross weights(W), momentum(S), g(B);
      each_step<2>([&](int n) {
        const Fragment d = by_outputs(n);
        add_product(by_W, d, weights(n));
        add_product(by_S, d, momentum(n));
        add_product(d_steps, d, g(n));
      });
      add_read_sums(by_W, by_S, in_tile(V));
      weighted(d_a, read_keep, by_W, read_carry, by_S);
      d_steps.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * kT + j);
        set_halves(R + i * kHalfRow + j, -kStepScale * a * step.x, -kStepScale * b * step.y);
        if (!has_own) return;
        const float2 overlap = pair(overlaps + i * kT + j);
        set_pair(d_read_steps + i * kT + j, -a * overlap.x * *back_scale, -b * overlap.y * *back_scale);
      });
    }
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(B), RightAcross(dw_last), RightAcross(ds_last));
      weighted(d_u, steps, by_W, momentum_steps, by_S);
    }
    __syncthreads();
    // To its g.
    Tile d_g;
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(U), Right(dw_last), Right(ds_last));
      add_step_sums(by_W, by_S, in_tile(B));
      weighted(d_g, steps, by_W, momentum_steps, by_S);
      Tile by_steps;
      const Left by_overlap(R);
      const LeftAcross by_overlap_across(R);
      const Right u(U), queries(V);
      each_step<2>([&](int n) {
        add_product(by_steps, by_overlap(n), u(n));
        add_product(d_u, by_overlap_across(n), queries(n));
      });
      elements(d_a, [&](float& a, int m, int e) { a += by_steps.c[m][e] / kStepScale; });
      // By the outputs of the own tokens, of which the block has the overlaps.
      const auto step_overlaps = [&](int down, int across) {
        const int from = (rank * kOwned + across + lane() % 4 * 2) * kT + Tile::row() + lane() / 4 + down;
        return tensor_core::pack<Half>(-kStepScale * read_steps[from] * overlaps[from],
                                       -kStepScale * read_steps[from + kT] * overlaps[from + kT]);
      };
      add_product(d_g, {{step_overlaps(0, 0), step_overlaps(8, 0), step_overlaps(0, 8), step_overlaps(8, 8)}},
                  Right(D)(rank));
    }
    __syncthreads();
    elements(d_a, [&](float& a, int m, int e) { a *= slopes_q(m, e); });
    write_halves(d_a, X);
    through_state(V, D, dW_last, dS_last, ds_last);
    float4 keys[kFetched];
    read_part(keys, at.tokens(p.k));
    Tile t;  // what d_z takes from t's gradient
    {
      Tile z_again, g;
      read(t, p.t + hidden, kHidden);
      read(z_again, first.z + hidden, kHidden);
      set_part(K, keys);
      tensor_core::copies_wait<0>();
      Dots of_first;
      each_fetched([&](int row, int column) {
        const int from = row * kRow + column, to = row * kHalfRow + column;
        const float4 w = four(sum_0 + from), s = four(sum_1 + from);
        of_first.add(w, s, dW_first + from, dS_first + from);
        set_halves(W + to, w), set_halves(S + to, s);
      });
      of_first.write(dots + 3 * kWarps);
      __syncthreads();
      elements(t, [&](float& a, int m, int e) {
        g.c[m][e] = a * slopes_k(m, e);
        a *= Normal(z_again.c[m][e]).bend();
      });
      write_halves(g, G);
    }

    // The first layer, the same.
    Tile d_q, d_first_g;
    {
      Tile overlap;
      multiply<2>(overlap, Left(Q), RightAcross(K));
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * kT + j);
        set_halves(P + i * kHalfRow + j, -kStepScale * a * step.x, -kStepScale * b * step.y);
        if (has_own) set_pair(own_overlap + i % kOwned * kDim + j, a, b);
      });
    }
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(X), RightAcross(W), RightAcross(S));
      add_read_sums(by_W, by_S, in_tile(Q));
      weighted(d_q, read_keep, by_W, read_carry, by_S);
    }
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(K), Right(dw_first), Right(ds_first));
      add_step_sums(by_W, by_S, in_tile(G));
      weighted(d_first_g, steps, by_W, momentum_steps, by_S);
    }
    __syncthreads();
    float4 again[kFetched];
    read_part(again, state(last.W, last.W_start) + at.last(rank));
    Tile d_k;
    multiply<2>(d_first_g, LeftAcross(P), Right(X));
    {
      Tile by_W, by_S, d_steps;
      const Left g(G), by_outputs(X);
      const RightAcross dW(dw_first), dS(ds_first), g_across(G);
      each_step<2>([&](int n) {
        const Fragment x = g(n);
        add_product(by_W, x, dW(n));
        add_product(by_S, x, dS(n));
        add_product(d_steps, by_outputs(n), g_across(n));
      });
      weighted(d_k, steps, by_W, momentum_steps, by_S);
      elements(d_first_g, [&](float& a, int m, int e) {
        t.c[m][e] *= a;
        a *= slopes_k(m, e);
      });
      __syncthreads();
      write_halves(d_first_g, T);
      write(d_steps, sum_1, kRow);
    }
    through_state(Q, X, dW_first, dS_first, ds_first);
    set_part(W_again, again);
    __syncthreads();

    // Through the inner gradient's way from the last layer to the first.
    Tile u;
    read(u, first.z + hidden, kHidden);
    const float2 y = pair(own_row(last.z)), target = pair(own_row(p.target)), own_g = pair(own_row(last.g));
    {
      multiply<2>(d_g, Left(T), Right(W_again));
      write(d_g, sum_0, kRow);
    }
    {
      Tile to;
      multiply<2>(to, LeftAcross(T), Right(B));
      add_steps(to, dW_last, nullptr);
    }
    cluster_arrive();
    cluster_wait();

    // Through the inner loss, and to the steps of the first layer, for the own tokens.
    {
      float2 d_target, by_weight{}, by_bias{};
      const float2 d_y = InnerLoss(p, n).backward(y, target, own_g, sum_of_blocks(sum_0 + own * kRow + 2 * lane()),
                                                  d_target, by_weight, by_bias);
      if (p.norm_weight) {
        float4& sum = by_norm();
        sum.x += by_weight.x, sum.y += by_weight.y, sum.z += by_bias.x, sum.w += by_bias.y;
      }
      set_pair(own_row(p.d_target), d_target.x * (*back_scale / kStepScale), d_target.y * (*back_scale / kStepScale));
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        set_halves(of_block(Y + own * kHalfRow + 2 * lane(), block), d_y.x, d_y.y);
      }
    }
    if (has_own) {
      Tile{}.each([&](int i, int j, float&, float&) {
        const float2 d = sum_of_blocks(sum_1 + i * kRow + j), step = pair(read_steps + i * kT + j),
                     overlap = pair(own_overlap + i % kOwned * kDim + j);
        float* const to = d_read_steps + i * kT + j;
        const float2 before = pair(to);
        set_pair(to, before.x - overlap.x * d.x * *back_scale, before.y - overlap.y * d.y * *back_scale);
        set_halves(R_first + i * kHalfRow + j, -kStepScale * d.x * step.x, -kStepScale * d.y * step.y);
      });
    }
    if (index >= p.N) {
      // What the next chunk starts with, to the L2 cache: of a block's tiles, a line for each thread.
      const Place next{at.index - p.N, kHidden, kT};
      const int line = thread() % (2 * kT), tensor = thread() / (2 * kT);
      const float* const all = tensor == 0 ? first.z : tensor == 1 ? p.t : p.x;
      if (tensor < 3) {
        prefetch(all + next.hidden(rank) + line / 2 * kHidden + line % 2 * 32);
      } else {
        prefetch((index >= 2 * p.N ? last.W : last.W_start) + next.last(rank) + 32 * line),
            prefetch((index >= 2 * p.N ? last.S : last.S_start) + next.last(rank) + 32 * line);
      }
      prefetch_part(next.index, rank, p.read_steps, p.overlap, last.z, p.target, p.d_out, last.g, p.q);
    }
    activate(u, inputs);
    cluster_arrive();
    cluster_wait();

    // Through the layers at k.
    {
      Tile back;
      multiply<2>(back, Left(Y), RightAcross(W_again));
      elements(t, [&](float& a, int m, int e) { a += (back.c[m][e] + d_u.c[m][e]) * slopes_k(m, e); });
      write_halves(t, Z);
    }
    {
      Tile to;
      multiply<2>(to, LeftAcross(inputs), Right(Y));
      add_steps(to, dW_last, dw_last);
    }
    add_product(d_k, LeftAcross(R_first)(rank), Right(Q)(rank));
    if (has_own) {
      Tile by_steps;
      multiply<2>(by_steps, Left(R_first), Right(K));
      elements(d_q, [&](float& a, int m, int e) { a += by_steps.c[m][e] / kStepScale; });
    }
    write(d_q, sum_0, kRow);
    __syncthreads();
    {
      multiply<2>(d_k, Left(Z), RightAcross(W));
      write(d_k, sum_1, kRow);
    }
    {
      Tile to;
      multiply<2>(to, LeftAcross(K), Right(Z));
      add_steps(to, dW_first, dw_first);
    }
    cluster_arrive();
    cluster_wait();

    {
      const float2 d_q = sum_of_blocks(sum_0 + own * kRow + 2 * lane()),
                   d_k = sum_of_blocks(sum_1 + own * kRow + 2 * lane());
      set_pair(own_row(p.d_q), d_q.x * *back_scale, d_q.y * *back_scale);
      set_pair(own_row(p.d_k), d_k.x * (*back_scale / kStepScale), d_k.y * (*back_scale / kStepScale));
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
      all[at.index * kT + token] = sum * *back_scale;
    }
    if (rank == 0 && warp() < 3) {
      float x = 0;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        x += of_block(dots, block)[(lane() / kWarps * 3 + warp()) * kWarps + lane() % kWarps];
      }
      x = warp_sum(x);
      if (lane() == 0)
        (warp() == 0 ? p.d_keep : warp() == 1 ? p.d_carry : p.d_momentum_keep)[at.index] = x * *back_scale;
    }
    cluster_arrive();
  }
  cluster_wait();

  const auto store_part = [&](float* to, const float* tile, int step) {
#pragma unroll
    for (int i = thread(); i < kDim * kDim / 4; i += kThreads) {
      const int row = i / (kDim / 4), column = i % (kDim / 4) * 4;
      *reinterpret_cast<float4*>(to + row * step + column) =
          scaled_four(*back_scale, *reinterpret_cast<const float4*>(tile + row * kRow + column));
    }
  };
  store_part(first.d_W + start.first(rank), dW_first, kHidden);
  store_part(first.d_S + start.first(rank), dS_first, kHidden);
  store_part(last.d_W + start.last(rank), dW_last, kDim);
  store_part(last.d_S + start.last(rank), dS_last, kDim);
  if (!p.norm_weight) return;
  const float4 sum_of_own = by_norm();
  set_pair(sum_0 + warp() * kRow + 2 * lane(), sum_of_own.x, sum_of_own.y);
  set_pair(sum_1 + warp() * kRow + 2 * lane(), sum_of_own.z, sum_of_own.w);
  cluster_arrive();
  cluster_wait();
  if (rank == 0 && threadIdx.x < 2 * kDim) {
    float sum = 0;
    for (int block = 0; block < kBlocks; ++block) {
      const float* const from = of_block(threadIdx.x < kDim ? sum_0 : sum_1, block) + threadIdx.x % kDim;
      for (int row = 0; row < kWarps; ++row) sum += from[row * kRow];
    }
    (threadIdx.x < kDim ? p.d_norm_weight : p.d_norm_bias)[n * kDim + threadIdx.x % kDim] =
        sum * (*back_scale / kStepScale);
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
