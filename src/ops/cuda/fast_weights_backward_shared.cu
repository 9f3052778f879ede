// The backward pass of TTT-MLP. The gradients with respect to the weights stay in shared memory between the chunks.
// Each saved weight of a chunk is loaded directly into the registers of the only warp that multiplies by it. A warp
// computes 16 hidden columns, and most of its intermediate results are not needed by other warps.
#include "ops/cuda/fast_weights_ttt.cuh"

namespace lazy::ops::cuda::learning {

namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kHidden = 256;

// Row strides of tiles. For tiles that are read in pairs or used as right operands, the stride is a multiple of 32 plus
// 8, which avoids bank conflicts.
constexpr int kWide = kHidden + 8, kLast = kDim + 8;
constexpr int kWideTile = kT * kWide, kRows = kT * kRow;
// Number of partial sums of d_steps, which is the matrix product of the first layer's output gradients for the queries
// q and the first layer's inner-loss gradients g.
constexpr int kParts = 4;

// kLine is the size of a line of the L2 cache in floats. kHiddenLines and kRowLines are the numbers of lines per chunk
// of a tensor with kHidden columns and of a tensor with 64 columns.
constexpr int kLine = 32, kHiddenLines = kT * kHidden / kLine, kRowLines = kT * kDim / kLine;
static_assert(kDim * kHidden == kLine * kThreads && 3 * kHiddenLines + 2 * kRowLines + 4 * kT == kThreads);

// Size of the shared memory in floats. The terms are in the order of the pointers in the kernel.
constexpr int kFloats = kDim * kWide + kHidden * kLast + 4 * kWideTile + 2 * kRows + 2 * kTokens<kT> +
                        3 * kT * kSquare + kDim + Factors::kFloats + (kWarps + 1) * kT;
constexpr int kBytes = kFloats * static_cast<int>(sizeof(float));

using Hidden = Share<kWarps, kT, kHidden>;
using Half = Share<kWarps, kT, kDim, 2>;
using Square = Share<kWarps, kT, kT>;
using Overlap = Share<kWarps, kT, kT, kParts>;

// Prefetches the inputs of a chunk that are needed first to the L2 cache. Every thread prefetches one line of the last
// layer's weights and one line of another tensor: z, t, x, g, y_q or the tokens. Some threads also prefetch a line of
// the overlaps.
template <typename Token>
__device__ void prefetch_start(const Block& block, int64_t chunk) {
  const TttProblem& p = block.p;
  const TokenIndex at{block.chunk(chunk), kHidden, kT};
  const int line = thread() % kHiddenLines, tensor = thread() / kHiddenLines;
  prefetch(p.W_last + at.last(0) + kLine * thread());
  if (tensor < 3) {
    const float* const all = tensor == 0 ? p.z : tensor == 1 ? p.t : p.x;
    prefetch(all + at.hidden(0) + kLine * line);
  } else if (line < 2 * kRowLines) {
    prefetch(at.tokens(line < kRowLines ? p.g : p.y_q) + kLine * (line % kRowLines));
  } else {
    const int which = (line - 2 * kRowLines) / kT;
    const TttTokens& all = which == 0 ? p.k : which == 1 ? p.q : which == 2 ? p.d_out : p.v;
    prefetch(block.token<const Token>(all, chunk * kT + line % kT));
  }
  if (thread() < kT * kT / kLine) prefetch(p.overlap + at.index * kT * kT + kLine * thread());
}

}  // namespace

template <typename Token>
__global__ void __launch_bounds__(kThreads, 1) mlp_backward(const __grid_constant__ TttProblem p) {
  extern __shared__ __align__(128) float memory[];
  float *const dW_first = memory, *const dW_last = dW_first + kDim * kWide;
  // Tiles with the hidden width, with their contents in the order in which they are stored.
  //   U: inputs of the last layer for the keys k, then the gradient of the first layer's output for the keys k
  //   X: gradient of the first layer's output for the queries q
  //   V: inputs of the last layer for the queries q, then the gradient with respect to t, then these inputs again
  //   G: inner-loss gradient g of the first layer, then partial sums of the warps
  float *const U = dW_last + kHidden * kLast, *const X = U + kWideTile, *const V = X + kWideTile,
               *const G = V + kWideTile;
  // Tile D: gradient of the last layer's output for the queries q. Tile B: inner-loss gradient g of the last layer.
  float *const D = G + kWideTile, *const B = D + kRows;
  float *const K = B + kRows, *const Q = K + kTokens<kT>;
  // The overlap of a layer is the matrix of inner products of its inputs for the queries q and its inputs for the keys
  // k. Tile R: overlap of the last layer, then its gradient, then the gradient of the first layer's overlap.
  float* const R = Q + kTokens<kT>;
  // Tiles P and S: the elementwise products overlap * steps of the first and of the last layer. At the end, tile S
  // contains the gradient of the factors by which the outputs multiply the inner-loss gradients (Factors::operator()).
  float *const P = R + kT * kSquare, *const S = P + kT * kSquare;
  float* const d_b_last = S + kT * kSquare;
  const Factors factors(d_b_last + kDim);
  const float* const steps = factors.steps;
  float *const sums = factors.steps + kT, *const d_scale = sums + kWarps * kT;
  const Block block{p};
  const TttLayer &first = p.first, &last = p.last;
  // Gradients of the norm's weight and bias, summed over the rows that this warp processes (one row per chunk).
  float2 by_weight{}, by_bias{};
  const int from = Half::part() * kHidden / 2;  // first inner index of the warp's half of the inner dimension

  fetch<kDim, kThreads, kHidden, kWide>(dW_first, first.d_W + block.n() * kDim * kHidden, kHidden);
  fetch<kHidden, kThreads, kDim, kLast>(dW_last, last.d_W + block.n() * kHidden * kDim, kDim);
  if (threadIdx.x < kDim) d_b_last[threadIdx.x] = last.d_b[block.n() * kDim + threadIdx.x];
  if (threadIdx.x < kT) factors.scale[threadIdx.x] = p.scale[threadIdx.x], d_scale[threadIdx.x] = 0;
  __syncthreads();
  // Gradient of the first layer's bias. Each lane has the columns of its Hidden elements and sums over the rows of
  // these elements.
  float d_b[Hidden::kTiles][2];
  const auto d_b_at = [&](int m) {
    return first.d_b + block.n() * kHidden + Hidden::group() * Hidden::kColumns + lane() % 4 * 2 + 8 * m;
  };
#pragma unroll
  for (int m = 0; m < Hidden::kTiles; ++m) {
    const float2 b = pair(d_b_at(m));
    d_b[m][0] = lane() < 4 ? b.x : 0, d_b[m][1] = lane() < 4 ? b.y : 0;
  }
  const auto sum_of_rows = [](float x) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
  };

  for (int64_t chunk = p.C - 1; chunk >= 0; --chunk) {
    const TokenIndex at{block.chunk(chunk), kHidden, kT};
    // Returns the address of the lane's two elements in the row that this warp processes.
    const auto own_row = [&](auto* all) { return at.tokens(all) + warp() * kDim + 2 * lane(); };
    fetch<kT, kThreads, kDim, kRow>(B, at.tokens(p.g), kDim);
    {
      RowPiece<Token, kWarps> k, q;
      k.read(block, p.k, chunk);
      q.read(block, p.q, chunk);
      if (threadIdx.x < kT) factors.set(*block.token<const float>(p.rate, chunk * kT + threadIdx.x));
      if (threadIdx.x < kT * kT) {
        const int i = thread() / kT, j = thread() % kT, to = i * kSquare + j;
        const float overlap = p.overlap[at.index * kT * kT + threadIdx.x];
        const float rate = *block.token<const float>(p.rate, chunk * kT + j);
        const float step = j > i ? 0 : factors.scale[i] * rate;
        R[to] = overlap, P[to] = step, S[to] = overlap * step;
      }
      k.template write<kStep>(K);
      q.template write<kStep>(Q);
    }
    // Backpropagate through the norm that is applied to the model's outputs.
    {
      const InnerLoss loss(p, block.head());
      OwnRows<Token, kWarps> d_out;
      d_out.read(block, p.d_out, chunk);
      const float2 d_y = through_output(loss, pair(own_row(p.y_q)), d_out[0], by_weight, by_bias);
      set_pair(D + warp() * kRow + 2 * lane(), d_y.x, d_y.y);
    }
    const HeldOperand<Hidden, kDim> W_rows(PairColumns<Hidden, kDim>(p.W_last + at.last(0)));
    Hidden z;
    read(z, p.z + at.hidden(0), kHidden);
    arrive();
    prefetch(p.W_first + at.first(0) + kLine * thread());
    if (thread() < kRowLines) prefetch(at.tokens(p.y) + kLine * thread());

    // Backpropagate through the update of the first layer to the layer's inner-loss gradient g, while the loads from
    // global memory are in flight.
    Hidden by;
    product<kDim>(by, Rows{K}, RowsOf<kWide>{dW_first});
    // Backpropagate through the update of the last layer to its input for the keys k.
    Hidden d_u;
    pair_product<kDim>(
        d_u,
        [&](int i, int k) {
          const float2 g = pair(B + i * kRow + k);
          return make_float2(-steps[i] * g.x, -steps[i] * g.y);
        },
        PairColumns<Hidden, kLast>(dW_last));

    Hidden d_a;  // gradient of the last layer's input for the queries q
    pair_product<kDim>(d_a, PairsOf<kRow>{D}, W_rows);
    Hidden t, x;
    read(t, p.t + at.hidden(0), kHidden);
    read(x, p.x + at.hidden(0), kHidden);

    // Two warps compute the elementwise product overlap * steps of the first layer, and the gradient of the
    // corresponding product of the last layer.
    Square overlap;
    {
      Square d_steps, last_overlap, step, d_read, first_steps;
      product<kDim>(overlap, Rows{Q}, Columns{K});
      pair_product<kDim>(d_steps, PairsOf<kRow>{D}, PairColumns<Square, kRow>(B));
      read(last_overlap, R, kSquare);
      read(step, P, kSquare);
      elements(step, [&](float& a, int m, int e) {
        const float d = -d_steps.c[m][e];
        overlap.c[m][e] += 1;
        first_steps.c[m][e] = overlap.c[m][e] * a;
        d_steps.c[m][e] = d * a;
        d_read.c[m][e] = d * last_overlap.c[m][e];
      });
      // The overlap of this chunk is not needed any more, so its memory is used as temporary storage for d_read.
      write(d_read, p.overlap + at.index * kT * kT, kT);
      write(d_steps, R, kSquare);
      write(first_steps, P, kSquare);
    }

    // Recompute the last layer's inputs for the keys k (U) and for the queries q (V). The first derivatives of the
    // activation overwrite z and x. t is multiplied by the second derivative at z; this is later needed for the
    // gradient with respect to z.
    Hidden g, input;
    {
      Hidden u;
      constexpr Gelu act{.tanh = true};
      g = t;
      elements(z, [&](float& a, int m, int e) {
        const float slope = act.slope(a);
        u.c[m][e] = act.value(a);
        t.c[m][e] *= act.bend(a), g.c[m][e] *= slope;
        a = slope;
      });
      elements(x, [&](float& a, int m, int e) {
        input.c[m][e] = act.value(a);
        a = act.slope(a);
      });
      write_rounded(u, U, kWide);
      write_rounded(g, G, kWide);
      write_rounded(input, V, kWide);
    }

    {
      float dots[2] = {}, bias[Hidden::kTiles][2];
#pragma unroll
      for (int m = 0; m < Hidden::kTiles; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) bias[m][e] = sum_of_rows(d_b[m][e]);
      }
      elements(by, [&](float& a, int m, int e) {
        a += bias[m][e % 2];
        dots[e / 2] -= a * g.c[m][e];
        a *= -steps[row_of(e)];
      });
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        dots[half] += __shfl_xor_sync(~0u, dots[half], 1);
        dots[half] += __shfl_xor_sync(~0u, dots[half], 2);
        if (lane() % 4 == 0) sums[warp() * kT + row_of(2 * half)] = dots[half];
      }
    }
    __syncthreads();

    product<kT>(d_a, RowsOf<kSquare>{R}, rounded(RowsOf<kWide>{U}));
    product<kT>(d_u, ColumnsOf<kSquare>{R}, rounded(RowsOf<kWide>{V}));
    elements(d_a, [&](float& a, int m, int e) { d_b[m][e % 2] += a *= x.c[m][e]; });
    write_rounded(d_a, X, kWide);
    __syncwarp();
    // Backpropagate through the inner backward pass, from the last layer to the first layer. `by` first contains the
    // gradient with respect to the first layer's inner-loss gradient g, and then the gradient with respect to t.
    product<kT>(by, minus(ColumnsOf<kSquare>{P}), rounded(RowsOf<kWide>{X}));
    elements(by, [&](float& a, int m, int e) {
      t.c[m][e] = t.c[m][e] * a + d_u.c[m][e] * z.c[m][e];
      a *= z.c[m][e];
    });
    write_rounded(by, V, kWide);
    __syncthreads();

    const HeldOperand<Half, kHidden / 2> W_columns(PairRows<Half, kDim>(p.W_last + at.last(0) + from * kDim));
    // Backpropagate through the update and the outputs of the last layer to the layer's inner-loss gradient g.
    Half d_g;
    pair_product<kHidden / 2>(d_g, rounded(PairsOf<kWide>{U + from}), PairRows<Half, kLast>(dW_last + from * kLast));
    d_g.add_rows(sums + Half::part() * kWarps / 2 * kT, [&](int i, int j, float& a, float& b) {
      if (Half::part() == 0) a += d_b_last[j], b += d_b_last[j + 1];
      const float2 g = pair(B + i * kRow + j);
      return -(a * g.x + b * g.y);
    });
    elements(d_g, [&](float& a, int, int e) { a *= -steps[row_of(e)]; });
    const int tokens = Half::part() * kT / 2;
    product<kT / 2>(d_g, minus(ColumnsOf<kSquare>{S + tokens * kSquare}), RowsOf<kRow>{D + tokens * kRow});
    // Backpropagate through the update of the first layer to the keys k.
    Half d_k;
    pair_product<kHidden / 2>(d_k, rounded(PairsOf<kWide>{G + from}), PairColumns<Half, kWide>(dW_first + from));
    elements(d_k, [&](float& a, int, int e) { a *= -steps[row_of(e)]; });
    pair_product<kHidden / 2>(d_g, rounded(PairsOf<kWide>{V + from}), W_columns);
    const float2 y = pair(own_row(p.y));
    Overlap d_steps;
    {
      const int own = Overlap::part() * kHidden / kParts;
      pair_product<kHidden / kParts>(d_steps, rounded(PairsOf<kWide>{X + own}),
                                     rounded(PairColumns<Overlap, kWide>(G + own)));
    }
    __syncthreads();
    float* const squares = G + 2 * kRows;
    write(d_g, G + Half::part() * kRows, kRow);
    write(d_steps, squares + Overlap::part() * kT * kT, kT);
    OwnRows<Token, kWarps> value;
    value.read(block, p.v, chunk);
    const HeldOperand<Hidden, kDim> W_again(PairColumns<Hidden, kDim>(p.W_last + at.last(0)));
    __syncthreads();

    // Backpropagate through the inner loss. Tile G receives the gradient of the last layer's output for the keys k,
    // followed by a copy of it that is rounded to TF32.
    float2 d_target;
    {
      float* const own = G + warp() * kRow + 2 * lane();
      const float2 a = pair(own), b = pair(own + kRows), v = value[0], key = pair(K + warp() * kStep + 2 * lane());
      const float2 d_y = InnerLoss(p, block.head())
                             .backward(y, make_float2(v.x - key.x, v.y - key.y), pair(B + warp() * kRow + 2 * lane()),
                                       make_float2(a.x + b.x, a.y + b.y), d_target, by_weight, by_bias);
      OwnRows<Token, kWarps>::write(block, p.d_v, chunk, 0, d_target);
      set_pair(own, d_y.x, d_y.y);
      set_rounded_pair(own + kRows, d_y.x, d_y.y);
    }
    {
      Square d_steps;
      d_steps.each([&](int i, int j, float& a, float& b) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const float2 d = pair(squares + part * kT * kT + i * kT + j);
          a -= d.x, b -= d.y;
        }
      });
      elements(d_steps, [&](float& a, int m, int e) { overlap.c[m][e] *= a; });
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 by_last = pair(p.overlap + at.index * kT * kT + i * kT + j);
        set_pair(S + i * kSquare + j, a + by_last.x, b + by_last.y);
      });
      d_steps.each([&](int i, int j, float& a, float& b) {
        set_pair(R + i * kSquare + j, a * factors(i, j), b * factors(i, j + 1));
      });
    }
    __syncthreads();

    float* const own_target = squares + warp() * kDim + 2 * lane();
    set_pair(own_target, d_target.x, d_target.y);
    if (chunk > 0) prefetch_start<Token>(block, chunk - 1);

    // Backpropagate through the evaluation of the layers with input k. `t` becomes the gradient of the first layer's
    // output for the keys k.
    {
      Hidden back;
      pair_product<kDim>(back, rounded(PairsOf<kRow>{G + kRows}), W_again);
      elements(t, [&](float& a, int m, int e) { d_b[m][e % 2] += a += back.c[m][e] * z.c[m][e]; });
    }
    HeldOperand<Half, kHidden / 2> W_first(PairColumns<Half, kHidden>(p.W_first + at.first(0) + from));
    {
      Share<kWarps, kHidden, kDim> to;  // its 16 rows per warp are the hidden columns that the warp computes
      product<kT>(to, rounded(ColumnsOf<kWide>{V}), RowsOf<kRow>{B});
      __syncwarp();
      write_rounded(input, V, kWide);
      __syncwarp();
      product<kT>(to, rounded(ColumnsOf<kWide>{V}), RowsOf<kRow>{D});
      product<kT>(to, rounded(ColumnsOf<kWide>{U}), rounded(RowsOf<kRow>{G + kRows}));
      add_to(to, dW_last, kLast);
      __syncwarp();
      write_rounded(t, U, kWide);
    }
    if (threadIdx.x < kDim) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kT; ++t) sum += D[t * kRow + threadIdx.x] + G[t * kRow + threadIdx.x];
      d_b_last[threadIdx.x] += sum;
    }
    by_factors<kWarps>(block, chunk, factors, S, sums, d_scale);
    __syncthreads();

    // Compute the gradients of the tokens (q and k) and of the first layer's weights.
    W_first.round();
    Half d_q;
    pair_product<kHidden / 2>(d_q, rounded(PairsOf<kWide>{X + from}), rounded(W_first));
    pair_product<kHidden / 2>(d_k, rounded(PairsOf<kWide>{U + from}), rounded(W_first));
    product<kT / 2>(d_q, RowsOf<kSquare>{R + tokens}, Rows{K + tokens * kStep});
    product<kT / 2>(d_k, ColumnsOf<kSquare>{R + tokens * kSquare}, Rows{Q + tokens * kStep});
    write(d_q, V + Half::part() * kRows, kRow);
    write(d_k, G + Half::part() * kRows, kRow);
    {
      Share<kWarps, kDim, kHidden> to;
      product<kT>(to, Columns{Q}, rounded(RowsOf<kWide>{X}));
      product<kT>(to, Columns{K}, rounded(RowsOf<kWide>{U}));
      add_to(to, dW_first, kWide);
    }
    __syncthreads();
    const auto sum_of_halves = [&](const float* halves) {
      const float* const own = halves + warp() * kRow + 2 * lane();
      const float2 a = pair(own), b = pair(own + kRows);
      return make_float2(a.x + b.x, a.y + b.y);
    };
    OwnRows<Token, kWarps> d_out;
    d_out.read(block, p.d_out, chunk);
    const float2 by_q = sum_of_halves(V), by_k = sum_of_halves(G), by_target = pair(own_target), d = d_out[0];
    OwnRows<Token, kWarps>::write(block, p.d_q, chunk, 0, make_float2(d.x + by_q.x, d.y + by_q.y));
    OwnRows<Token, kWarps>::write(block, p.d_k, chunk, 0, make_float2(by_k.x - by_target.x, by_k.y - by_target.y));
  }

  store<kDim, kThreads, kHidden, kWide>(first.d_W + block.n() * kDim * kHidden, dW_first);
  store<kHidden, kThreads, kDim, kLast>(last.d_W + block.n() * kHidden * kDim, dW_last);
#pragma unroll
  for (int m = 0; m < Hidden::kTiles; ++m) {
    const float a = sum_of_rows(d_b[m][0]), b = sum_of_rows(d_b[m][1]);
    if (lane() < 4) set_pair(d_b_at(m), a, b);
  }
  if (threadIdx.x < kDim) last.d_b[block.n() * kDim + threadIdx.x] = d_b_last[threadIdx.x];
  if (threadIdx.x < kT) p.d_scale[block.n() * kT + threadIdx.x] = d_scale[threadIdx.x];
  set_pair(U + warp() * kStep + 2 * lane(), by_weight.x, by_weight.y);
  set_pair(X + warp() * kStep + 2 * lane(), by_bias.x, by_bias.y);
  __syncthreads();
  if (threadIdx.x < kDim) {
    p.d_norm_weight[block.n() * kDim + threadIdx.x] = column_sum<kWarps>(U);
    p.d_norm_bias[block.n() * kDim + threadIdx.x] = column_sum<kWarps>(X);
  }
}

int ttt_mlp_memory(int64_t H) { return H == kHidden ? kBytes : 0; }

void ttt_mlp_backward(const TttProblem& p, cudaStream_t stream) {
  with_tokens(p, [&](auto token) { launch(mlp_backward<decltype(token)>, kThreads, kBytes, p, stream, p.heads); });
}

}  // namespace lazy::ops::cuda::learning
