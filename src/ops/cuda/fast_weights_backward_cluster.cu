// The backward pass of two-layer fast weights with momentum, on clusters of blocks. Each block has a part of the state,
// and the gradients with respect to this part stay in its shared memory between the chunks. The state at the start of a
// chunk is loaded once per chunk, in the fp16 form in which the forward pass used it as an operand.
#include "ops/cuda/fast_weights_cluster.cuh"

namespace lazy::ops::cuda::learning {

using namespace spread;

namespace {

// Indices of the units of the fp16 operands. The unit of an operand is the power of two by which all its elements are
// divided; see Units in fast_weights_cluster.cuh. The four gradients of the state have consecutive indices, and so do
// their tiles. The entries from kKept on are units that the forward pass saved. kU is the unit of the last layer's
// inputs for the keys k. These inputs are computed twice per chunk, with the same unit. kV is the unit of the last
// layer's inputs for the queries q.
enum {
  kState,
  kFirstDW = kState,
  kFirstDS,
  kLastDW,
  kLastDS,
  kD,
  kB,
  kReadSteps,
  kX,
  kG,
  kT1,
  kFirstR,
  kZ,
  kY,  // the units of kY and of the following entries are computed without Units::propose
  kKeep,
  kCarry,
  kKept,
  kFirstW = kKept + Kept::kFirstW,
  kFirstS = kKept + Kept::kFirstS,
  kLastW = kKept + Kept::kLastW,
  kLastS = kKept + Kept::kLastS,
  kU = kKept + Kept::kZ,
  kV = kKept + Kept::kX,
  kOfT = kKept + Kept::kT,
  kFactors
};
static_assert(kY == Units::kPlaces);

constexpr int kGroups = Tile::kColumnGroups;
constexpr int kBytes =
    (6 * kTile + 5 * kT + 4 * kGroups * kT + 6 * kWarps + kOwned * kDim + Units::numbers(kFactors) + 2) *
        static_cast<int>(sizeof(float)) +
    (12 * kHalfTile + 2 * kT) * static_cast<int>(sizeof(Half));
static_assert(kBytes <= kMaxSharedBytes && (Units::numbers(kFactors) + 2) % 4 == 0);

// The inner products of a layer's weights W and momentum S with the gradients dW and dS after the chunk: W . dW, S . dW
// and S . dS. They are the gradients of the coefficients keep, carry and momentum_keep, in this order.
struct Dots {
  float keep = 0, carry = 0, momentum_keep = 0;
  __device__ Dots(const Half* W, const Half* S, float* dW, float* dS) {
    each_fetched([&](int row, int column) {
      const float4 w = four_halves(W + row * kHalfRow + column), s = four_halves(S + row * kHalfRow + column);
      const float4 d = four(dW + row * kRow + column), e = four(dS + row * kRow + column);
      keep += dot_four(w, d), carry += dot_four(s, d), momentum_keep += dot_four(s, e);
    });
  }
  __device__ void write(float* to, float unit_W, float unit_S) const {
    const float all[3] = {warp_sum(unit_W * keep), warp_sum(unit_S * carry), warp_sum(unit_S * momentum_keep)};
    if (lane() != 0) return;
#pragma unroll
    for (int n = 0; n < 3; ++n) to[n * kWarps + warp()] = all[n];
  }
};
// Computes to = factor[row] * unit_a * a + more[row] * unit_b * b for the elements of every row. unit_a and unit_b are
// the units (powers of two) by which the elements of a and b were divided.
__device__ void weighted(Tile& to, const float* factor, const Tile& a, float unit_a, const float* more, const Tile& b,
                         float unit_b) {
  elements(to, [&](float& x, int m, int e) {
    const int row = Tile::row() + row_of(e);
    x = factor[row] * unit_a * a.c[m][e] + more[row] * unit_b * b.c[m][e];
  });
}

}  // namespace

__global__ void __launch_bounds__(kThreads, 1) backward_cluster(const __grid_constant__ FastWeightsProblem p) {
  if (!kClusters) return;
  // The gradients with respect to the state in fp32, followed by their fp16 copies, which are used as operands of
  // products.
  float *const dW_first = shared_memory(), *const dS_first = dW_first + kTile;
  float *const dW_last = dS_first + kTile, *const dS_last = dW_last + kTile;
  // Partial sums that must be added over the blocks of the cluster. First, sum_0 is the gradient with respect to the
  // last layer's inner-loss gradient g, and sum_1 is the gradient with respect to the first layer's elementwise product
  // overlap * steps. Later, sum_0 is the gradient of q and sum_1 the gradient of k.
  float *const sum_0 = dS_last + kTile, *const sum_1 = sum_0 + kTile;
  float *const read_keep = sum_1 + kTile, *const read_carry = read_keep + kT;
  float *const steps = read_carry + kT, *const momentum_steps = steps + kT;
  float* const sums = momentum_steps + kT;  // gradients of the per-token factors: one partial sum per group of columns
  float *const sum_steps = sums, *const sum_momentum = sums + kGroups * kT, *const sum_keep = sums + 2 * kGroups * kT,
               *const sum_carry = sums + 3 * kGroups * kT;
  // dots, (layer, coefficient, warp): partial sums of the gradients of the coefficients keep, carry and momentum_keep.
  float *const dots = sums + 4 * kGroups * kT, *const own_overlap = dots + 6 * kWarps;
  float* const units_of_Y = own_overlap + kOwned * kDim;  // unit (power-of-two scale) of each row of tile Y
  const Units units(units_of_Y + kT);
  Half *const dw_first = reinterpret_cast<Half*>(units.all + kFactors + 2), *const ds_first = dw_first + kHalfTile;
  Half *const dw_last = ds_first + kHalfTile, *const ds_last = dw_last + kHalfTile;
  // Eight fp16 tiles. Most of them are used for several tensors, one after the other. The comments below list the
  // contents of each tile in the order in which they are stored.
  Half *const D = ds_last + kHalfTile, *const B = D + kHalfTile, *const w_first = B + kHalfTile;
  Half *const w_last = w_first + kHalfTile, *const U = w_last + kHalfTile, *const V = U + kHalfTile,
              *const R = V + kHalfTile, *const Q = R + kHalfTile;
  Half *const keep_factors = Q + kHalfTile, *const carry_factors = keep_factors + kT;
  // Tile D contains d_out, then the first layer's elementwise product overlap * steps, by which its inner-loss
  // gradients are multiplied, then the gradient of the first layer's overlap.
  Half *const P = D, *const R_first = D;
  // Tile B contains the inner-loss gradient g of the last layer, then the last layer's inputs for the keys k (computed
  // for the second time). Tile U contains the last layer's inputs for the keys k (computed for the first time), then k.
  Half *const inputs = B, *const K = U;
  // Tile Q contains S of the last layer, then q. S of the first layer uses the memory of the partial sums sum_0.
  Half *const s_last = Q, *const s_first = reinterpret_cast<Half*>(sum_0);
  // Tile V contains the inputs of the last layer for the queries q, then the inner-loss gradient g of the first layer,
  // then the gradient with respect to t (t is the gradient of the inner loss with respect to the last layer's input),
  // then the gradient of the last layer's output for the keys k.
  Half *const G = V, *const T = V, *const Y = V;
  // Tile R contains the gradient of the last layer's overlap (matrix of inner products of the layer's inputs for the
  // queries q and for the keys k), then the gradient of the first layer's output for the queries q, then the gradient
  // of the first layer's output for the keys k.
  Half *const X = R, *const Z = R;

  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  const int n = static_cast<int>(blockIdx.x / kBlocks);
  const int own = rank * kOwned + warp();  // index of the token for which this warp adds the partial sums of all blocks
  const bool has_own = Tile::row() == rank * kOwned;
  const FastWeightsLayer &first = p.first, &last = p.last;
  // Gradients of the norm's weight and bias. Each warp sums them over its tokens. A thread's four values are stored in
  // the padding at the end of a row of a gradient tile.
  const auto by_norm = [&]() -> float4& {
    const int row = thread() / 2;
    return four(dW_first + row / kDim * kTile + row % kDim * kRow + kDim + thread() % 2 * 4);
  };
  by_norm() = make_float4(0, 0, 0, 0);
  const TokenIndex start{n, kHidden, kT};
  const auto fetch_end = [&](float* tile, const float* end, int64_t part, int step) {
    if (end) return fetch_tile(tile, end + part, step);
    each_fetched([&](int row, int column) { four(tile + row * kRow + column) = make_float4(0, 0, 0, 0); });
  };
  fetch_end(dW_first, first.d_W_end, start.first(rank), kHidden);
  fetch_end(dS_first, first.d_S_end, start.first(rank), kHidden);
  fetch_end(dW_last, last.d_W_end, start.last(rank), kDim);
  fetch_end(dS_last, last.d_S_end, start.last(rank), kDim);
  // Starts the asynchronous copy of the last layer's W and S of a chunk. The kernel waits immediately only for the copy
  // for the last chunk, which it processes first; the other copies overlap with computation.
  const auto fetch_last = [&](int64_t index) {
    const Half* const state = kept_of(p, index, rank).state;
    fetch_factors(w_last, state + 2 * kHalfTile), fetch_factors(s_last, state + 3 * kHalfTile);
    tensor_core::copies_commit();
  };
  fetch_last((p.C - 1) * p.N + n);
  tensor_core::copies_wait<0>();
  propose_state(dW_first, units, kState);
  __syncthreads();
  set_state(dw_first, dW_first, units, kState);
  cluster_arrive();

  for (int index = static_cast<int>((p.C - 1) * p.N) + n; index >= 0; index -= static_cast<int>(p.N)) {
    const TokenIndex at{index, kHidden, kT};
    const Kept& kept = kept_of(p, at.index, rank);
    const float* const read_steps = p.read_steps + at.index * kT * kT;
    const float* const overlaps = p.overlap + at.index * kT * kT;
    float* const d_read_steps = p.d_read_steps + at.index * kT * kT;
    const auto own_row = [&](auto* all) { return at.tokens(all) + own * kDim + 2 * lane(); };
    Tile z, x;
    const float unit_of_z = kept.units[Kept::kZ], unit_of_x = kept.units[Kept::kX];
    widen(z, kept.z[thread()], unit_of_z);
    widen(x, kept.x[thread()], unit_of_x);
    float4 d[kFetched], g[kFetched];
    read_part(d, at.tokens(p.d_out));
    read_part(g, at.tokens(last.g));
    if (thread() < Kept::kUnits) units.all[kKept + thread()] = kept.units[thread()];
    const Slopes slopes_k = activate(z), slopes_q = activate(x);
    // This barrier is needed only for the tool compute-sanitizer racecheck, which does not recognize that the cluster
    // barrier already allows overwriting K.
    __syncthreads();
    write_halves(z, U, inverse(unit_of_z)), write_halves(x, V, inverse(unit_of_x));
    units.propose(kD, largest(d)), units.propose(kB, largest(g));
    tensor_core::copies_wait<0>();
    __syncthreads();
    set_part(D, d, units.settle(kD)), set_part(B, g, units.settle(kB));
    const Dots of_last(w_last, s_last, dW_last, dS_last);
    cluster_wait();  // wait until all blocks have read the partial sums
    of_last.write(dots, units.of(kLastW), units.of(kLastS));
    fetch_factors(w_first, kept.state), fetch_factors(s_first, kept.state + kHalfTile);
    tensor_core::copies_commit();
    for (int i = threadIdx.x; i < 4 * kGroups * kT; i += kThreads) sums[i] = 0;
    if (warp() < 4) {
      const int which = warp();
      const float2 x =
          pair(one_of_four(p.read_keep, p.read_carry, p.steps, p.momentum_steps) + at.index * kT + 2 * lane());
      const float sign = which < 2 ? 1 : -1;
      set_pair(read_keep + which * kT + 2 * lane(), sign * x.x, sign * x.y);
      if (which < 2) set_row(keep_factors + which * kT, x, units.all[kKeep + which]);
    }
    {
      float4 step[kFetched];
      read_part(step, read_steps);
      units.propose(kReadSteps, largest(step));
    }
    __syncthreads();
    const float by_step = units.settle(kReadSteps);

    // Adds the gradients of the per-token factors to sums_W and sums_S. These gradients are the inner products of the
    // rows of `tile` with the rows of by_W and of by_S. by_W and by_S are products with W and S, or with the gradients
    // of W and S.
    const auto add_sums = [&](float* sums_W, Tile& by_W, float unit_W, float* sums_S, Tile& by_S, float unit_S,
                              const Half* tile) {
      const auto dot = [tile](int i, int j, float& x, float& y) {
        const float2 by = halves(tile + i * kHalfRow + j);
        return x * by.x + y * by.y;
      };
      by_W.add_rows(sums_W, dot, unit_W);
      by_S.add_rows(sums_S, dot, unit_S);
    };
    // Backpropagates through the update of a layer's state and through the layer's outputs: computes the gradients d_W
    // and d_S before the chunk from the gradients dW and dS after the chunk. `a` is the input of the layer for the
    // queries q, and d_y is the gradient of the layer's outputs.
    const auto through_state = [&](const Half* a, const Half* d_y, float unit, float* dW, float* dS, int ds) {
      Tile by_W, by_S;
      multiply_scaled<2>(by_W, by_S, LeftAcross(a), Right(d_y), keep_factors, carry_factors);
      const float keep = p.keep[at.index], carry = p.carry[at.index], momentum_keep = p.momentum_keep[at.index];
      const float unit_W = units.of(kKeep) * unit, unit_S = units.of(kCarry) * unit;
      float most = 0;
      each_of_two(by_W, by_S, [&](int i, int j, float2 w, float2 s) {
        float *const at_W = dW + i * kRow + j, *const at_S = dS + i * kRow + j;
        const float2 d = pair(at_W), e = pair(at_S);
        set_pair(at_W, unit_W * w.x + keep * d.x, unit_W * w.y + keep * d.y);
        s = make_float2(unit_S * s.x + carry * d.x + momentum_keep * e.x,
                        unit_S * s.y + carry * d.y + momentum_keep * e.y);
        set_pair(at_S, s.x, s.y);
        most = fmaxf(fmaxf(most, fabsf(s.x)), fabsf(s.y));
      });
      units.propose(ds, most);
    };
    // Computes dW += unit * to. Returns the largest absolute value of the elements of dW that this thread holds.
    const auto add_steps = [&](Tile& to, float unit, float* dW) {
      float most = 0;
      to.each([&](int i, int j, float& a, float& b) {
        float* const at = dW + i * kRow + j;
        const float2 before = pair(at), after = make_float2(before.x + unit * a, before.y + unit * b);
        set_pair(at, after.x, after.y);
        most = fmaxf(fmaxf(most, fabsf(after.x)), fabsf(after.y));
      });
      return most;
    };

    // Last layer: backpropagate through the outputs to the layer's input for the queries q, and through the update to
    // the layer's input for the keys k. Also compute the gradient of the layer's overlap (matrix of inner products of
    // its inputs for the queries q and for the keys k).
    Tile d_a, d_u;
    {
      Tile by_W, by_S, d_steps;
      const Left by_outputs(D);
      const RightAcross weights(w_last), momentum(s_last), g(B);
      each_step<2>([&](int n) {
        const Fragment d = by_outputs(n);
        add_product(by_W, d, weights(n));
        add_product(by_S, d, momentum(n));
        add_product(d_steps, d, g(n));
      });
      const float unit_W = units.of(kD, kLastW), unit_S = units.of(kD, kLastS), unit = -units.of(kD, kB),
                  // An fp16 operand has elements of at most 2^15, so a sum of 64 products is at most 2^36 times the
                  // product of the units of D and B.
          by = -by_step * 0x1p-36f;
      add_sums(sum_keep, by_W, unit_W * units.of(kV), sum_carry, by_S, unit_S * units.of(kV), V);
      weighted(d_a, read_keep, by_W, unit_W, read_carry, by_S, unit_S);
      d_steps.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * kT + j);
        if (has_own) {
          const float2 overlap = pair(overlaps + i * kT + j);
          set_pair(d_read_steps + i * kT + j, unit * a * overlap.x, unit * b * overlap.y);
        }
        set_halves(R + i * kHalfRow + j, by * a * step.x, by * b * step.y);
      });
    }
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(B), RightAcross(dw_last), RightAcross(ds_last));
      weighted(d_u, steps, by_W, units.of(kB, kLastDW), momentum_steps, by_S, units.of(kB, kLastDS));
    }
    __syncthreads();
    // Backpropagate through the update and the outputs of the last layer to the layer's inner-loss gradient g.
    Tile d_g;
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(U), Right(dw_last), Right(ds_last));
      const float unit_W = units.of(kU, kLastDW), unit_S = units.of(kU, kLastDS), unit_g = -units.of(kB);
      add_sums(sum_steps, by_W, unit_g * unit_W, sum_momentum, by_S, unit_g * unit_S, B);
      weighted(d_g, steps, by_W, unit_W, momentum_steps, by_S, unit_S);
    }
    {
      Tile by_steps, by_queries;
      const Left of_overlap(R);
      const LeftAcross of_overlap_across(R);
      const Right u(U), queries(V);
      each_step<2>([&](int n) {
        add_product(by_steps, of_overlap(n), u(n));
        add_product(by_queries, of_overlap_across(n), queries(n));
      });
      const float unit_of_R = units.of(kD, kB) * (units.of(kReadSteps) * 0x1p36f);
      add_scaled(d_a, unit_of_R * units.of(kU), by_steps);
      add_scaled(d_u, unit_of_R * units.of(kV), by_queries);
    }
    {
      // Add the contribution of the outputs to d_g. Each block does this for the tokens that it owns, because it has
      // the overlap of these tokens. Each warp computes the unit (power-of-two scale) of its part.
      const int first_one = (rank * kOwned + lane() % 4 * 2) * kT + Tile::row() + lane() / 4;
      const float *const steps_at = read_steps + first_one, *const overlaps_at = overlaps + first_one;
      float2 x[4];
      float most = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int at = n / 2 * 8 * kT + n % 2 * 8;
        x[n] = make_float2(-steps_at[at] * overlaps_at[at], -steps_at[at + kT] * overlaps_at[at + kT]);
        most = fmaxf(fmaxf(most, fabsf(x[n].x)), fabsf(x[n].y));
      }
      const float unit = unit_of(warp_max(bits(most))), by = inverse(unit);
      Fragment step_overlaps;
#pragma unroll
      for (int n = 0; n < 4; ++n) step_overlaps.x[n] = tensor_core::pack<Half>(by * x[n].x, by * x[n].y);
      Tile by_outputs;
      add_product(by_outputs, step_overlaps, Right(D)(rank));
      add_scaled(d_g, unit * units.of(kD), by_outputs);
    }
    elements(d_a, [&](float& a, int m, int e) { a *= slopes_q(m, e); });
    units.propose(kX, largest(d_a));
    __syncthreads();
    write_halves(d_a, X, units.settle(kX));
    through_state(V, D, units.of(kV, kD), dW_last, dS_last, kLastDS);
    float4 keys[kFetched], queries[kFetched];
    read_part(keys, at.tokens(p.k)), read_part(queries, at.tokens(p.q));
    // Part of the gradient with respect to the first layer's output z for the keys k: the part that comes from the
    // factor act'(z) in the first layer's inner-loss gradient g = t act'(z).
    Tile t;
    {
      Tile z_again, g;
      widen(t, kept.t[thread()], units.of(kOfT));
      widen(z_again, kept.z[thread()], units.of(kU));
      set_part(K, keys), set_part(Q, queries);
      elements(t, [&](float& a, int m, int e) {
        g.c[m][e] = a * slopes_k(m, e);
        a *= Normal(z_again.c[m][e]).bend();
      });
      units.propose(kG, largest(g));
      tensor_core::copies_wait<0>();
      __syncthreads();
      write_halves(g, G, units.settle(kG));
      Dots(w_first, s_first, dW_first, dS_first).write(dots + 3 * kWarps, units.of(kFirstW), units.of(kFirstS));
    }

    // First layer: the same computations as above for the last layer.
    Tile d_q, d_first_g;
    {
      Tile overlap;
      multiply<2>(overlap, Left(Q), RightAcross(K));
      const float by = -inverse(units.of(kReadSteps)) / kLongest;
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * kT + j);
        if (has_own) set_pair(own_overlap + i % kOwned * kDim + j, a, b);
        set_halves(P + i * kHalfRow + j, by * a * step.x, by * b * step.y);
      });
    }
    __syncthreads();
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(X), RightAcross(w_first), RightAcross(s_first));
      const float unit_W = units.of(kX, kFirstW), unit_S = units.of(kX, kFirstS);
      add_sums(sum_keep, by_W, unit_W, sum_carry, by_S, unit_S, Q);
      weighted(d_q, read_keep, by_W, unit_W, read_carry, by_S, unit_S);
    }
    {
      Tile by_W, by_S;
      multiply<2>(by_W, by_S, Left(K), Right(dw_first), Right(ds_first));
      const float unit_W = units.of(kFirstDW), unit_S = units.of(kFirstDS), unit_g = -units.of(kG);
      add_sums(sum_steps, by_W, unit_g * unit_W, sum_momentum, by_S, unit_g * unit_S, G);
      weighted(d_first_g, steps, by_W, unit_W, momentum_steps, by_S, unit_S);
    }
    __syncthreads();
    Tile d_k;
    add_multiple<2>(d_first_g, LeftAcross(P), Right(X), [&] { return kLongest * units.of(kReadSteps, kX); });
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
      weighted(d_k, steps, by_W, units.of(kG, kFirstDW), momentum_steps, by_S, units.of(kG, kFirstDS));
      const float unit = units.of(kX, kG);
      scale(d_steps, unit);
      elements(d_first_g, [&](float& a, int m, int e) {
        t.c[m][e] *= a;
        a *= slopes_k(m, e);
      });
      units.propose(kT1, largest(d_first_g));
      __syncthreads();
      write_halves(d_first_g, T, units.settle(kT1));
      write(d_steps, sum_1, kRow);
    }
    through_state(Q, X, units.of(kX), dW_first, dS_first, kFirstDS);
    __syncthreads();

    // Backpropagate through the inner backward pass, which computes the first layer's inner-loss gradient from the last
    // layer's inner-loss gradient.
    Tile u;
    widen(u, kept.z[thread()], units.of(kU));
    const float2 y = pair(own_row(last.z)), target = pair(own_row(p.target)), own_g = pair(own_row(last.g));
    add_multiple<2>(d_g, Left(T), Right(w_last), [&] { return units.of(kT1, kLastW); });
    write(d_g, sum_0, kRow);
    {
      Tile to;
      multiply<2>(to, LeftAcross(T), Right(B));
      add_steps(to, units.of(kT1, kB), dW_last);
    }
    cluster_arrive();
    cluster_wait();

    // For the tokens that this block owns, backpropagate through the inner loss and compute the gradient of the first
    // layer's overlap (matrix q k^T).
    float2 d_target;
    {
      float2 by_weight{}, by_bias{};
      const float2 d_y = InnerLoss(p, n).backward(y, target, own_g, sum_of_blocks(sum_0 + own * kRow + 2 * lane()),
                                                  d_target, by_weight, by_bias);
      if (p.norm_weight) {
        float4& sum = by_norm();
        sum.x += by_weight.x, sum.y += by_weight.y, sum.z += by_bias.x, sum.w += by_bias.y;
      }
      write_row(Y, units_of_Y, own, d_y);
    }
    Tile by_first_overlap;
    if (has_own) {
      by_first_overlap.each([&](int i, int j, float& a, float& b) {
        const float2 d = sum_of_blocks(sum_1 + i * kRow + j), step = pair(read_steps + i * kT + j),
                     overlap = pair(own_overlap + i % kOwned * kDim + j);
        float* const to = d_read_steps + i * kT + j;
        const float2 before = pair(to);
        set_pair(to, before.x - overlap.x * d.x, before.y - overlap.y * d.y);
        a = -d.x * step.x, b = -d.y * step.y;
      });
    }
    units.propose(kFirstR, largest(by_first_overlap));
    if (index >= p.N) {
      // Prefetch to the L2 cache the inputs of the next chunk that are needed first. Each thread prefetches one cache
      // line of the struct Kept.
      const int64_t next = at.index - p.N;
      static_assert(sizeof(Kept) <= 128 * kThreads);
      if (thread() < static_cast<int>(sizeof(Kept) / 128)) {
        prefetch(reinterpret_cast<const char*>(&kept_of(p, next, rank)) + 128 * thread());
      }
      prefetch_part(next, rank, p.read_steps, p.overlap, last.z, p.target, p.d_out, last.g, p.q);
    }
    activate(u);
    write_halves(u, inputs, inverse(units.of(kU)));
    cluster_arrive();
    set_pair(own_row(p.d_target), d_target.x, d_target.y);
    cluster_wait();
    level_rows(Y, units_of_Y, units, kY);
    const float by_first_R = units.settle(kFirstR);
    if (has_own) write_halves(by_first_overlap, R_first, by_first_R);
    __syncthreads();

    // Backpropagate through the evaluation of the layers with input k, from the last layer to the first.
    {
      Tile back;
      multiply<2>(back, Left(Y), RightAcross(w_last));
      const float unit = units.of(kY, kLastW);
      elements(t, [&](float& a, int m, int e) { a += (unit * back.c[m][e] + d_u.c[m][e]) * slopes_k(m, e); });
      units.propose(kZ, largest(t));
    }
    {
      Tile to;
      multiply<2>(to, LeftAcross(inputs), Right(Y));
      units.propose(kLastDW, add_steps(to, units.of(kU, kY), dW_last));
    }
    {
      Tile by_steps;
      add_product(by_steps, LeftAcross(R_first)(rank), Right(Q)(rank));
      add_scaled(d_k, units.of(kFirstR), by_steps);
    }
    if (has_own) add_multiple<2>(d_q, Left(R_first), Right(K), [&] { return units.of(kFirstR); });
    write(d_q, sum_0, kRow);
    __syncthreads();
    if (index >= p.N) fetch_last(at.index - p.N);
    write_halves(t, Z, units.settle(kZ));
    __syncthreads();
    add_multiple<2>(d_k, Left(Z), RightAcross(w_first), [&] { return units.of(kZ, kFirstW); });
    write(d_k, sum_1, kRow);
    {
      Tile to;
      multiply<2>(to, LeftAcross(K), Right(Z));
      units.propose(kFirstDW, add_steps(to, units.of(kZ), dW_first));
    }
    cluster_arrive();
    cluster_wait();

    set_state(dw_first, dW_first, units, kState);
    const float2 sum_q = sum_of_blocks(sum_0 + own * kRow + 2 * lane()),
                 sum_k = sum_of_blocks(sum_1 + own * kRow + 2 * lane());
    const int factor = thread() / kOwned, token = rank * kOwned + thread() % kOwned;
    const bool has_factor = factor < 4, has_coefficient = rank == 0 && warp() < 3;
    float sum = 0;
    if (has_factor) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float* const from = of_block(sums, block) + factor * kGroups * kT + token;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) sum += from[group * kT];
      }
    }
    float dot = 0;
    if (has_coefficient) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        dot += of_block(dots, block)[(lane() / kWarps * 3 + warp()) * kWarps + lane() % kWarps];
      }
      dot = warp_sum(dot);
    }
    cluster_arrive();
    set_pair(own_row(p.d_q), sum_q.x, sum_q.y), set_pair(own_row(p.d_k), sum_k.x, sum_k.y);
    if (has_factor) {
      float* const all = factor == 0   ? p.d_steps
                         : factor == 1 ? p.d_momentum_steps
                         : factor == 2 ? p.d_read_keep
                                       : p.d_read_carry;
      all[at.index * kT + token] = sum;
    }
    if (has_coefficient && lane() == 0) {
      (warp() == 0 ? p.d_keep : warp() == 1 ? p.d_carry : p.d_momentum_keep)[at.index] = dot;
    }
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
