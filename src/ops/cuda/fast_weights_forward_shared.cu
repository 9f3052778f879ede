// The forward pass of TTT-MLP for weights that fit in shared memory. The weights stay there for all chunks. Data that
// the backward pass needs is written to global memory and is not read back by the forward pass.
#include "ops/cuda/fast_weights_ttt.cuh"

namespace lazy::ops::cuda::learning {

namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kHidden = 256;

// Row strides of tiles in floats. They avoid bank conflicts when the lanes of a warp load an mma fragment: a multiple
// of 32 plus 4 for left operands, or plus 8 for right operands.
constexpr int kFirst = kHidden + 8, kLast = kDim + 8, kInput = kHidden + 4, kGradient = kHidden + 8;
constexpr int kParts = 4;  // number of partial sums of the last layer's overlap

// Size of the shared memory in floats. The terms are in the order of the pointers in the kernel.
constexpr int kFloats = kDim * kFirst + kHidden * kLast + 2 * kT * kInput + kT * kGradient + 5 * kTokens<kT> +
                        kT * kSquare + kParts * kT * kT + kHidden + kDim + Factors::kFloats;
constexpr int kBytes = kFloats * static_cast<int>(sizeof(float));

}  // namespace

template <typename Token>
__global__ void __launch_bounds__(kThreads, 1) mlp_forward(const __grid_constant__ TttProblem p) {
  extern __shared__ __align__(128) float memory[];
  float *const W_first = memory, *const W_last = W_first + kDim * kFirst;
  // Tiles of the last layer's inputs for the keys k and for the queries q.
  float *const U = W_last + kHidden * kLast, *const X = U + kT * kInput;
  // Tile of the inner-loss gradients g of the first layer.
  float* const G = X + kT * kInput;
  // Tile K contains k, and at the end of a chunk the outputs before the norm.
  float *const K = G + kT * kGradient, *const Q = K + kTokens<kT>;
  // Tile B contains the inner-loss gradient g of the last layer, and tile Z contains two partial sums of the last
  // layer's output.
  float *const B = Q + kTokens<kT>, *const Z = B + kTokens<kT>;
  // Tile P contains a layer's elementwise product overlap * steps, by which the layer's inner-loss gradients are
  // multiplied. Tile O contains the partial sums of the last layer's overlap.
  float *const P = Z + 2 * kTokens<kT>, *const O = P + kT * kSquare;
  float *const b_first = O + kParts * kT * kT, *const b_last = b_first + kHidden;
  const Factors factors(b_last + kDim);
  using Hidden = Share<kWarps, kT, kHidden>;
  using Half = Share<kWarps, kT, kDim, 2>;
  using Overlap = Share<kWarps, kT, kT, kParts>;
  const Block block{p};
  const TttLayer &first = p.first, &last = p.last;
  constexpr Gelu act{.tanh = true};
  const InnerLoss loss(p, block.head());
  // Address of the lane's two elements in the row of this warp.
  const auto own = [](float* tile) { return tile + warp() * kStep + 2 * lane(); };
  // Multiplies hidden inputs by the last layer's weights and stores the result in Z as two partial sums.
  const auto last_product = [&](const float* inputs) {
    Half half;
    const int from = Half::part() * kHidden / 2;
    product<kHidden / 2>(half, RowsOf<kInput>{inputs + from}, RowsOf<kLast>{W_last + from * kLast});
    half.each(
        [&](int i, int j, float& a, float& b) { set_pair(Z + Half::part() * kTokens<kT> + i * kStep + j, a, b); });
  };
  const auto last_output = [&](int i, int j) {
    const float2 a = pair(Z + i * kStep + j), b = pair(Z + kTokens<kT> + i * kStep + j), bias = pair(b_last + j);
    return make_float2(a.x + b.x + bias.x, a.y + b.y + bias.y);
  };

  fetch<kDim, kThreads, kHidden, kFirst>(W_first, first.W + block.state() * kDim * kHidden, kHidden);
  fetch<kHidden, kThreads, kDim, kLast>(W_last, last.W + block.state() * kHidden * kDim, kDim);
  if (threadIdx.x < kHidden) b_first[threadIdx.x] = first.b[block.state() * kHidden + threadIdx.x];
  if (threadIdx.x < kDim) b_last[threadIdx.x] = last.b[block.state() * kDim + threadIdx.x];
  if (threadIdx.x < kT) factors.scale[threadIdx.x] = p.scale[threadIdx.x];
  arrive();

  Ahead<Token, kWarps> next;
  next.read(block, 0);
  for (int64_t chunk = 0; chunk < p.C; ++chunk) {
    const TokenIndex at{block.chunk(chunk), kHidden, kT};
    const bool ends = chunk + 1 == p.C;
    const int64_t row_place = at.index * kT * kDim + warp() * kDim + 2 * lane();
    next.k.template write<kStep>(K);
    next.q.template write<kStep>(Q);
    factors.set(next.rate);
    const float2 value = next.v[0];
    __syncthreads();
    if (!ends) next.read(block, chunk + 1);
    if (p.for_backward) {
      store<kDim, kThreads, kHidden, kFirst>(p.W_first + at.first(0), W_first);
      store<kHidden, kThreads, kDim, kLast>(p.W_last + at.last(0), W_last);
    }

    // Compute the first layer's outputs for the keys k and for the queries q. The outputs for the queries q do not yet
    // include the updates within this chunk.
    Hidden z, x;
    product<kDim>(z, Rows{K}, RowsOf<kFirst>{W_first});
    z.each([&](int i, int j, float& a, float& b) {
      a += b_first[j], b += b_first[j + 1];
      const int64_t to = at.hidden(0) + i * kHidden + j;
      const float u = act.value(a), v = act.value(b);
      if (p.for_backward) set_pair(p.z + to, a, b);
      set_pair(U + i * kInput + j, u, v);
    });
    product<kDim>(x, Rows{Q}, RowsOf<kFirst>{W_first});
    {
      Share<kWarps, kT, kT> overlap;
      product<kDim>(overlap, Rows{Q}, Columns{K});
      overlap.each([&](int i, int j, float& a, float& b) {
        set_pair(P + i * kSquare + j, (a + 1) * factors(i, j), (b + 1) * factors(i, j + 1));
      });
    }
    __syncthreads();

    // Compute the inner-loss gradients.
    last_product(U);
    __syncthreads();
    {
      float2 y = last_output(warp(), 2 * lane());
      const float2 k = pair(own(K)), g = loss.gradient(y, make_float2(value.x - k.x, value.y - k.y));
      if (p.for_backward) set_pair(p.y + row_place, y.x, y.y), set_pair(p.g + row_place, g.x, g.y);
      set_pair(own(B), g.x, g.y);
    }
    __syncthreads();
    Hidden t;
    product<kDim>(t, Rows{B}, ColumnsOf<kLast>{W_last});
    if (p.for_backward)
      t.each([&](int i, int j, float& a, float& b) { set_pair(p.t + at.hidden(0) + i * kHidden + j, a, b); });
    elements(t, [&](float& a, int m, int e) { a *= act.slope(z.c[m][e]); });
    t.each([&](int i, int j, float& a, float& b) { set_pair(G + i * kGradient + j, a, b); });
    __syncthreads();

    // Compute the outputs for the queries q.
    product<kT>(x, minus(RowsOf<kSquare>{P}), RowsOf<kGradient>{G});
    x.each([&](int i, int j, float& a, float& b) {
      a += b_first[j], b += b_first[j + 1];
      if (p.for_backward) set_pair(p.x + at.hidden(0) + i * kHidden + j, a, b);
      set_pair(X + i * kInput + j, act.value(a), act.value(b));
    });
    __syncthreads();
    last_product(X);
    {
      Overlap overlap;
      const int from = Overlap::part() * kHidden / kParts;
      product<kHidden / kParts>(overlap, RowsOf<kInput>{X + from}, ColumnsOf<kInput>{U + from});
      overlap.each([&](int i, int j, float& a, float& b) { set_pair(O + (Overlap::part() * kT + i) * kT + j, a, b); });
    }
    __syncthreads();

    // Compute the state after the chunk. After the last chunk, it is computed only if the caller requests it.
    const bool updates = !ends || last.W_end;
    if (threadIdx.x < kT * kT) {
      float overlap = 1;
#pragma unroll
      for (int part = 0; part < kParts; ++part) overlap += O[part * kT * kT + threadIdx.x];
      if (p.for_backward) p.overlap[at.index * kT * kT + threadIdx.x] = overlap;
      const int i = threadIdx.x / kT, j = threadIdx.x % kT;
      P[i * kSquare + j] = overlap * factors(i, j);
    }
    if (updates) {
      Share<kWarps, kHidden, kDim> by;
      product<kT>(by, ScaledColumnsOf<kInput>{U, factors.steps}, Rows{B});
      by.each([&](int i, int j, float& a, float& b) {
        float* const w = W_last + i * kLast + j;
        set_pair(w, w[0] - a, w[1] - b);
      });
    }
    if (updates) {
      Share<kWarps, kDim, kHidden> by;
      product<kT>(by, ScaledColumns{K, factors.steps}, RowsOf<kGradient>{G});
      by.each([&](int i, int j, float& a, float& b) {
        float* const w = W_first + i * kFirst + j;
        set_pair(w, w[0] - a, w[1] - b);
      });
      if (threadIdx.x < kHidden) b_first[threadIdx.x] -= stepped_sum<kT, kGradient>(factors.steps, G);
    }
    const float by_bias = updates && threadIdx.x < kDim ? stepped_sum<kT, kStep>(factors.steps, B) : 0;
    __syncthreads();
    {
      Share<kWarps, kT, kDim> y;
      product<kT>(y, minus(RowsOf<kSquare>{P}), Rows{B});
      y.each([&](int i, int j, float& a, float& b) {
        const float2 out = last_output(i, j);
        set_pair(K + i * kStep + j, out.x + a, out.y + b);
      });
    }
    __syncthreads();
    if (updates && threadIdx.x < kDim) b_last[threadIdx.x] -= by_bias;
    const float2 y = pair(own(K)), q = pair(own(Q));
    if (p.for_backward) set_pair(p.y_q + row_place, y.x, y.y);
    if (p.out.at) OwnRows<Token, kWarps>::write(block, p.out, chunk, 0, output(loss, q, y));
    __syncwarp();  // the tokens of the next chunk overwrite memory that other lanes of the warp may still read
  }
  if (!last.W_end) return;
  store<kDim, kThreads, kHidden, kFirst>(first.W_end + block.n() * kDim * kHidden, W_first);
  store<kHidden, kThreads, kDim, kLast>(last.W_end + block.n() * kHidden * kDim, W_last);
  if (threadIdx.x < kHidden) first.b_end[block.n() * kHidden + threadIdx.x] = b_first[threadIdx.x];
  if (threadIdx.x < kDim) last.b_end[block.n() * kDim + threadIdx.x] = b_last[threadIdx.x];
}

void ttt_mlp_forward(const TttProblem& p, cudaStream_t stream) {
  with_tokens(p, [&](auto token) { launch(mlp_forward<decltype(token)>, kThreads, kBytes, p, stream, p.heads); });
}

}  // namespace lazy::ops::cuda::learning
