// The forward pass of two-layer fast weights with momentum, on clusters of blocks. u (the last layer's input) and the
// first layer's inner-loss gradient g are not saved; the backward pass computes them again.
#include "ops/cuda/fast_weights_cluster.cuh"

namespace lazy::ops::cuda::learning {

using namespace spread;

namespace {

// Indices of the units of the fp16 operands. A unit is the power of two by which all elements of an operand are
// divided. The units of the four operands of the state have consecutive indices, and so do their tiles.
enum { kState, kFirstW = kState, kFirstS, kLastW, kLastS, kX, kReadSteps, kB, kSteps, kMomentumSteps, kFactors };

constexpr int kBytes = (6 * kTile + 3 * kT + kOwned + Units::numbers(kFactors) + 3) * static_cast<int>(sizeof(float)) +
                       (11 * kHalfTile + 2 * kT) * static_cast<int>(sizeof(Half));
static_assert((kOwned + Units::numbers(kFactors) + 3) % 4 == 0);
static_assert(kBytes <= kMaxSharedBytes);

}  // namespace

__global__ void __launch_bounds__(kThreads, 1) forward_cluster(const __grid_constant__ FastWeightsProblem p) {
  if (!kClusters) return;
  float *const W_first = shared_memory(), *const S_first = W_first + kTile;
  float *const W_last = S_first + kTile, *const S_last = W_last + kTile;
  // Partial sums of this block. Z: outputs of the last layer. O: overlap of the last layer, which is the matrix of
  // inner products of its inputs for the queries q and its inputs for the keys k.
  float *const Z = S_last + kTile, *const O = Z + kTile;
  float *const read_keep = O + kTile, *const read_carry = read_keep + kT;
  // Units (power-of-two scales) of the rows of tile B, and of the rows of tile P while P contains the product of the
  // last layer.
  float *const units_of_B = read_carry + kT, *const units_of_P = units_of_B + kT;
  const Units units(units_of_P + kOwned);
  // Tiles of fp16 operands: first the state, then the tokens.
  Half *const w_first = reinterpret_cast<Half*>(units.all + kFactors + 3), *const s_first = w_first + kHalfTile;
  Half *const w_last = s_first + kHalfTile, *const s_last = w_last + kHalfTile;
  Half *const K = s_last + kHalfTile, *const Q = K + kHalfTile;
  // Inputs of the last layer: U for the keys k, X for the queries q.
  Half *const U = Q + kHalfTile, *const X = U + kHalfTile;
  // Tile G contains the inner-loss gradients g of the first layer, and tile B contains the inner-loss gradients of the
  // last layer.
  Half *const G = X + kHalfTile, *const B = G + kHalfTile;
  // Tile P contains the negative of a layer's elementwise product overlap * steps, by which the layer's inner-loss
  // gradients are multiplied.
  Half* const P = B + kHalfTile;
  Half *const steps = P + kHalfTile, *const momentum_steps = steps + kT;
  // own_outputs begins after the kOwned rows of P that the computation for the last layer uses, because slower warps
  // may still read these rows.
  float* const own_outputs = reinterpret_cast<float*>(P + kOwned * kHalfRow);
  static_assert(kOwned * kRow * sizeof(float) <= (kT - kOwned) * kHalfRow * sizeof(Half));
  const int rank = static_cast<int>(blockIdx.x % kBlocks);
  const int64_t n = blockIdx.x / kBlocks;
  const int own = rank * kOwned + warp();  // index of the token for which this warp adds the partial sums of all blocks
  const FastWeightsLayer &first = p.first, &last = p.last;
  const InnerLoss loss(p, n);
  float4 next_k[kFetched], next_q[kFetched];
  const auto load = [&](int64_t index) {
    read_part(next_k, p.k + index * kT * kDim);
    read_part(next_q, p.q + index * kT * kDim);
  };
  const TokenIndex start{n, kHidden, kT};
  fetch_tile(W_first, first.W_start + start.first(rank), kHidden);
  fetch_tile(S_first, first.S_start + start.first(rank), kHidden);
  fetch_tile(W_last, last.W_start + start.last(rank), kDim);
  fetch_tile(S_last, last.S_start + start.last(rank), kDim);
  load(n);
  tensor_core::copies_commit();
  tensor_core::copies_wait<0>();
  propose_state(W_first, units, kState);
  __syncthreads();
  set_state(w_first, W_first, units, kState);

  for (int64_t chunk = 0; chunk < p.C; ++chunk) {
    const TokenIndex at{chunk * p.N + n, kHidden, kT};
    const bool ends = chunk + 1 == p.C;
    const float* const read_steps = p.read_steps + at.index * kT * kT;
    const int64_t own_place = (at.index * kT + own) * kDim + 2 * lane();
    const float2 target = pair(p.target + own_place), own_steps = pair(read_steps + own * kT + 2 * lane());
    if (warp() < 4) {
      const int which = warp();
      const float2 x =
          pair(one_of_four(p.steps, p.momentum_steps, p.read_keep, p.read_carry) + at.index * kT + 2 * lane());
      if (which < 2) {
        set_row(steps + which * kT, x, units.all[kSteps + which]);
      } else {
        set_pair(read_keep + (which - 2) * kT + 2 * lane(), x.x, x.y);
      }
    }
    const float keep = p.keep[at.index], carry = p.carry[at.index], momentum_keep = p.momentum_keep[at.index];
    Tile step;
    read(step, read_steps, kT);
    units.propose(kReadSteps, largest(step));
    set_part(K, next_k);
    set_part(Q, next_q);
    if (p.for_backward) fence_for_bulk_copies();
    __syncthreads();
    if (p.for_backward && thread() == 0) copy_bulk(kept_of(p, at.index, rank).state, w_first, sizeof(Kept::state));
    const auto mixed = [&](Tile& by_W, float unit_W, const Tile& by_S, float unit_S) {
      elements(by_W, [&](float& a, int m, int e) {
        const int row = Tile::row() + row_of(e);
        a = read_keep[row] * unit_W * a + read_carry[row] * unit_S * by_S.c[m][e];
      });
    };

    // Rounds the thread's elements to the precision in which they are saved for the backward pass, so that both passes
    // use the same values.
    const auto round_to_kept = [](Tile& share, float by, float unit) {
      const uint4 part = narrowed(share, by);
      widen(share, part, unit);
      return part;
    };

    // Compute the first layer's outputs for the keys k and for the queries q. The outputs for the queries q do not yet
    // include the updates within this chunk.
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
      mixed(x, units.of(kFirstW), by_S, units.of(kFirstS));
      const float by = -units.settle(kReadSteps) / kLongest;
      elements(overlap, [&](float& a, int m, int e) { a *= by * step.c[m][e]; });
      write_halves(overlap, P);
    }
    const float unit_of_U = kLongest * units.of(kFirstW);
    const uint4 kept_z = round_to_kept(z, 1 / kLongest, unit_of_U);
    const Slopes slopes = activate(z);
    write_halves(z, U, inverse(unit_of_U));
    __syncthreads();

    // Compute the inner-loss gradients.
    {
      Tile y;
      multiply<4>(y, Left(U), Right(w_last));
      const float unit = unit_of_U * units.of(kLastW);
      scale(y, unit);
      if (chunk > 0) cluster_wait();  // wait until the other blocks have read Z and O
      write(y, Z, kRow);
    }
    cluster_arrive();
    cluster_wait();
    {
      float2 y = sum_of_blocks(Z + own * kRow + 2 * lane());
      const float2 g = loss.gradient(y, target);
      write_row(B, units_of_B, own, g);
      cluster_arrive();
      if (p.for_backward) {
        kept_of(p, at.index, rank).z[thread()] = kept_z;
        set_pair(last.z + own_place, y.x, y.y), set_pair(last.g + own_place, g.x, g.y);
      }
    }
    cluster_wait();
    level_rows(B, units_of_B, units, kB);
    __syncthreads();
    const float unit_of_G = units.of_product(kB, kLastW);
    {
      Tile t;
      multiply<4>(t, Left(B), RightAcross(w_last));
      scale(t, units.of(kB, kLastW) * inverse(unit_of_G));
      if (p.for_backward) kept_of(p, at.index, rank).t[thread()] = narrowed(t);
      elements(t, [&](float& a, int m, int e) { a *= slopes(m, e); });
      write_halves(t, G);
    }
    __syncthreads();

    // Compute the outputs for the queries q.
    add_multiple<4>(x, Left(P), Right(G), [&] { return kLongest * units.of(kReadSteps) * unit_of_G; });
    units.propose(kX, largest(x));
    __syncthreads();
    {
      const float by = units.settle(kX);
      const uint4 part = round_to_kept(x, by, inverse(by));
      if (p.for_backward) kept_of(p, at.index, rank).x[thread()] = part;
      activate(x);
      write_halves(x, X, by);
    }
    __syncthreads();
    if (p.for_backward && thread() < Kept::kUnits) {
      const int which = thread();
      kept_of(p, at.index, rank).units[which] = which == Kept::kZ   ? unit_of_U
                                                : which == Kept::kX ? units.of(kX)
                                                : which == Kept::kT ? unit_of_G
                                                                    : units.of(kState + which);
    }
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
      mixed(y, units.of(kX, kLastW), by_S, units.of(kX, kLastS));
      const float unit = units.of(kX) * unit_of_U;
      scale(overlap, unit);
    }
    write(y, Z, kRow);
    write(overlap, O, kRow);
    cluster_arrive();

    // Compute the state after the chunk. After the last chunk, it is computed only if the caller requests it.
    const auto advance = [&](const Half* u, const Half* g, float unit, float* W, float* S, int w, float* to_W,
                             float* to_S, int64_t part, int row) {
      const float by_steps = -units.of(kSteps) * unit, by_momentum_steps = -units.of(kMomentumSteps) * unit;
      float most_W = 0, most_S = 0;
      Tile by, by_momentum;
      multiply_scaled<4>(by, by_momentum, LeftAcross(u), Right(g), steps, momentum_steps);
      each_of_two(by, by_momentum, [&](int i, int j, float2 a, float2 b) {
        float *const at_W = W + i * kRow + j, *const at_S = S + i * kRow + j;
        const float2 before = pair(at_W), momentum = pair(at_S);
        const float2 next_w = make_float2(keep * before.x + carry * momentum.x + by_steps * a.x,
                                          keep * before.y + carry * momentum.y + by_steps * a.y),
                     next_s = make_float2(momentum_keep * momentum.x + by_momentum_steps * b.x,
                                          momentum_keep * momentum.y + by_momentum_steps * b.y);
        set_pair(at_W, next_w.x, next_w.y), set_pair(at_S, next_s.x, next_s.y);
        most_W = fmaxf(fmaxf(most_W, fabsf(next_w.x)), fabsf(next_w.y));
        most_S = fmaxf(fmaxf(most_S, fabsf(next_s.x)), fabsf(next_s.y));
        if (!ends) return;
        set_pair(to_W + part + i * row + j, next_w.x, next_w.y);
        set_pair(to_S + part + i * row + j, next_s.x, next_s.y);
      });
      units.propose(w, most_W), units.propose(w + 1, most_S);
    };
    if (!ends || last.W_end) {
      advance(K, G, unit_of_G, W_first, S_first, kFirstW, first.W_end, first.S_end, start.first(rank), kHidden);
      advance(U, B, unit_of_U * units.of(kB), W_last, S_last, kLastW, last.W_end, last.S_end, start.last(rank), kDim);
    }
    cluster_wait();

    // Compute the outputs of the tokens that this block owns. P becomes the negative of the last layer's elementwise
    // product overlap * steps.
    {
      const float2 sum = sum_of_blocks(O + own * kRow + 2 * lane()), out = sum_of_blocks(Z + own * kRow + 2 * lane());
      const float2 steps_of_row = make_float2(-sum.x * own_steps.x, -sum.y * own_steps.y);
      const float unit = row_unit(steps_of_row), by = inverse(unit);
      set_halves(P + warp() * kHalfRow + 2 * lane(), by * steps_of_row.x, by * steps_of_row.y);
      if (lane() == 0) units_of_P[warp()] = unit;
      set_pair(own_outputs + warp() * kRow + 2 * lane(), out.x, out.y);
      cluster_arrive();
      if (p.for_backward) set_pair(p.overlap + (at.index * kT + own) * kT + 2 * lane(), sum.x, sum.y);
    }
    if (p.for_backward && thread() == 0) wait_for_bulk_reads();
    __syncthreads();
    if (!ends) {
      set_state(w_first, W_first, units, kState);
      load(at.index + p.N);
      prefetch_part(at.index + p.N, rank, p.read_steps, p.target);
    }
    // Only the warps that compute the first 16 rows multiply, because the block has written only kOwned = 16 rows of P.
    if (Tile::row() == 0) {
      Tile out;
      multiply<4>(out, Left(P), Right(B));
      out.each([&](int i, int j, float& a, float& b) {
        const float2 sum = pair(own_outputs + i * kRow + j);
        const float unit = units_of_P[i] * units.of(kB);
        set_pair(p.out + (at.index * kT + rank * kOwned + i) * kDim + j, sum.x + unit * a, sum.y + unit * b);
      });
    }
  }
  cluster_wait();  // wait until no other block reads the shared memory of this block any more
}

int64_t kept_by_cluster(const FastWeightsProblem& p) {
  return serves(p, forward_cluster) ? kBlocks * static_cast<int64_t>(sizeof(Kept)) : 0;
}

bool forward_in_cluster(const FastWeightsProblem& p, cudaStream_t stream) {
  if (!serves(p, forward_cluster)) return false;
  launch(forward_cluster, kThreads, kBytes, p, stream, /*heads=*/1, kBlocks);
  return true;
}

}  // namespace lazy::ops::cuda::learning
