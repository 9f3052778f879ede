// TTT-Linear. Each block iterates over the chunks of one sequence and head. The state stays in registers for all
// chunks. Each warp has 16 columns of the state, in the register layout of mma accumulators of the transposed state. In
// this layout, the state can be used directly as the right operand of products whose inner index is the row of the
// state. The backward pass starts from the last state. It reverts the update of each chunk with the inner-loss
// gradients that the forward pass saved.
#include "ops/cuda/fast_weights_ttt.cuh"

namespace lazy::ops::cuda::learning {

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kState = kDim + 4;          // column stride of a state in shared memory
using State = Share<kWarps, kDim, kDim>;  // transposed: its rows are the columns of the state
using Outputs = Share<kWarps, kT, kDim>;
using Square = Share<kWarps, kT, kT>;
using Rows4 = WarpRows<kWarps>;

constexpr int kForwardFloats = 4 * kTile + kT * kSquare + kDim + Factors::kFloats;
constexpr int kBackwardFloats =
    6 * kTile + 2 * kDim * kState + 3 * kT * kSquare + 2 * kDim + Factors::kFloats + (kWarps + 1) * kT;
constexpr int bytes(int floats) { return floats * static_cast<int>(sizeof(float)); }

// Loads the state of the block. In memory, the state has the layout (rows, columns).
__device__ void read(State& to, const float* from) {
  to.each([&](int column, int row, float& a, float& b) {
    a = from[row * kDim + column], b = from[(row + 1) * kDim + column];
  });
}
__device__ void write(State& state, float* to) {
  state.each(
      [&](int column, int row, float& a, float& b) { to[row * kDim + column] = a, to[(row + 1) * kDim + column] = b; });
}
// Stores the state to shared memory in the layout (columns, rows), for use as an operand of products whose inner index
// is the column of the state.
__device__ void share(State& state, float* to) {
  state.each([&](int column, int row, float& a, float& b) { set_rounded_pair(to + column * kState + row, a, b); });
}
using OverColumns = PairRows<Outputs, kState>;

// The state as the right operand of products whose inner index is the row of the state.
struct OverRows {
  const State& state;
  __device__ float2 operator()(int step, int n) const {
    return make_float2(state.c[step][2 * n], state.c[step][2 * n + 1]);
  }
};

// Computes state += left * right. The product is summed separately and then added to the state in fp32 with rounding to
// nearest, because the state is a sum over many chunks.
template <typename Left, typename Right>
__device__ void add_chunk(State& state, const Left& left, const Right& right) {
  const int i = lane() / 4, j = lane() % 4, row = State::row() + i;
  uint32_t x[kT / 8][4];
#pragma unroll
  for (int step = 0; step < kT / 8; ++step) {
    const int k = 8 * step + j;
    x[step][0] = tf32(left(row, k)), x[step][1] = tf32(left(row + 8, k));
    x[step][2] = tf32(left(row, k + 4)), x[step][3] = tf32(left(row + 8, k + 4));
  }
#pragma unroll
  for (int n = 0; n < State::kTiles; ++n) {
    float sum[4] = {};
#pragma unroll
    for (int step = 0; step < kT / 8; ++step) {
      const int k = 8 * step + j;
      mma_tf32(sum, x[step], tf32(right(k, 8 * n + i)), tf32(right(k + 4, 8 * n + i)));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) state.c[n][e] += sum[e];
  }
}

__device__ void write_tile(Outputs& y, float* tile) {
  y.each([&](int i, int j, float& a, float& b) { set_pair(tile + i * kRow + j, a, b); });
}

}  // namespace

template <>
constexpr bool kInRegisters<OverRows> = true;

template <typename Token>
__global__ void __launch_bounds__(kThreads, 4) linear_forward(const __grid_constant__ TttProblem p) {
  extern __shared__ __align__(128) float memory[];
  // Tile Z contains f(k), later f(q), where f is the fast-weights model.
  float *const K = memory, *const Q = K + kTile, *const Z = Q + kTile, *const G = Z + kTile;
  // Tile P contains the factors by which the outputs of the model multiply the inner-loss gradients.
  float *const P = G + kTile, *const bias = P + kT * kSquare;
  const Factors factors(bias + kDim);
  const Block block{p};
  const InnerLoss loss(p, block.head());
  State W;
  read(W, p.last.W + block.state() * kDim * kDim);
  if (threadIdx.x < kDim) bias[threadIdx.x] = p.last.b[block.state() * kDim + threadIdx.x];
  if (threadIdx.x < kT) factors.scale[threadIdx.x] = p.scale[threadIdx.x];
  __syncthreads();

  Ahead<Token, kWarps> next;
  next.read(block, 0);
  for (int64_t chunk = 0; chunk < p.C; ++chunk) {
    next.k.write(K);
    next.q.write(Q);
    factors.set(next.rate);
    const OwnRows<Token, kWarps> v = next.v;
    __syncthreads();
    if (chunk + 1 < p.C) next.read(block, chunk + 1);

    Outputs z, y;
    {
      Square overlap;
      pair_product<kDim>(z, exact<Token>(PairsOf<kRow>{K}), OverRows{W});
      pair_product<kDim>(y, exact<Token>(PairsOf<kRow>{Q}), OverRows{W});
      pair_product<kDim>(overlap, exact<Token>(PairsOf<kRow>{Q}), exact<Token>(PairColumns<Square, kRow>(K)));
      write_tile(z, Z);
      overlap.each([&](int i, int j, float& a, float& b) {
        set_pair(P + i * kSquare + j, (a + 1) * factors(i, j), (b + 1) * factors(i, j + 1));
      });
    }
    __syncthreads();

    Rows4::each([&](int m) {
      const float2 b = pair(bias + 2 * lane()), k = pair(Rows4::at(K, m)), value = v[m];
      float2 row = pair(Rows4::at(Z, m));
      row = make_float2(row.x + b.x, row.y + b.y);
      const float2 g = loss.gradient(row, make_float2(value.x - k.x, value.y - k.y));
      set_pair(Rows4::at(G, m), g.x, g.y);
      if (p.for_backward) {
        set_pair(p.g + (block.chunk(chunk) * kT + Rows4::row(m)) * kDim + 2 * lane(), g.x, g.y);
      }
    });
    __syncthreads();

    product<kT>(y, minus(RowsOf<kSquare>{P}), RowsOf<kRow>{G});
    y.each([&](int i, int j, float& a, float& b) { set_pair(Z + i * kRow + j, a + bias[j], b + bias[j + 1]); });
    add_chunk(W, minus(ScaledColumnsOf<kRow>{G, factors.steps}), exact<Token>(RowsOf<kRow>{K}));
    const float by_bias = threadIdx.x < kDim ? stepped_sum<kT, kRow>(factors.steps, G) : 0;
    __syncthreads();
    if (threadIdx.x < kDim) bias[threadIdx.x] -= by_bias;
    Rows4::each([&](int m) {
      OwnRows<Token, kWarps>::write(block, p.out, chunk, m, output(loss, pair(Rows4::at(Q, m)), pair(Rows4::at(Z, m))));
    });
    __syncwarp();  // the q of the next chunk overwrites memory that other lanes of the warp may still read
  }
  if (!p.last.W_end) return;
  write(W, p.last.W_end + block.n() * kDim * kDim);
  if (threadIdx.x < kDim) p.last.b_end[block.n() * kDim + threadIdx.x] = bias[threadIdx.x];
}

template <typename Token>
__global__ void __launch_bounds__(kThreads, 3) linear_backward(const __grid_constant__ TttProblem p) {
  extern __shared__ __align__(128) float memory[];
  // Tile G contains the inner-loss gradients, later the gradient of q.
  float *const K = memory, *const Q = K + kTile, *const G = Q + kTile;
  // With f the fast-weights model: tile Z contains f(k), then the gradient of the target, then the gradient of k. Tile
  // Y contains f(q), then the gradient of f(q). Tile X contains the gradient with respect to the inner-loss gradients,
  // then the gradient of f(k).
  float *const Z = G + kTile, *const Y = Z + kTile, *const X = Y + kTile;
  float *const W_shared = X + kTile, *const D_shared = W_shared + kDim * kState;
  // Tile P contains the factors by which the outputs of the model multiply the inner-loss gradients.
  float* const P = D_shared + kDim * kState;
  // Tile R contains the gradient of q k^T. Tile S contains the gradient of the factors of the inner-loss gradients
  // (Factors).
  float *const R = P + kT * kSquare, *const S = R + kT * kSquare;
  float *const bias = S + kT * kSquare, *const d_bias = bias + kDim;
  const Factors factors(d_bias + kDim);
  float* const sums = factors.steps + kT;  // gradients of each token's step factor: one partial sum per warp
  float* const d_scale = sums + kWarps * kT;
  const Block block{p};
  State W, D;  // the state and the gradient with respect to it
  read(W, p.last.W_end + block.n() * kDim * kDim);
  read(D, p.last.d_W + block.n() * kDim * kDim);
  share(D, D_shared);
  if (threadIdx.x < kDim) {
    bias[threadIdx.x] = p.last.b_end[block.n() * kDim + threadIdx.x];
    d_bias[threadIdx.x] = p.last.d_b[block.n() * kDim + threadIdx.x];
  }
  if (threadIdx.x < kT) factors.scale[threadIdx.x] = p.scale[threadIdx.x], d_scale[threadIdx.x] = 0;
  __syncthreads();

  RowPiece<Token, kWarps> next_k, next_q;
  RowPiece<float, kWarps> next_g;
  float next_rate = 0;
  float2 by_weight{}, by_norm_bias{};
  const auto fetch_chunk = [&](int64_t chunk) {
    next_k.read(block, p.k, chunk);
    next_q.read(block, p.q, chunk);
    next_g.read(p.g + block.chunk(chunk) * kT * kDim, kDim);
    if (threadIdx.x < kT) next_rate = *block.token<const float>(p.rate, chunk * kT + threadIdx.x);
  };
  fetch_chunk(p.C - 1);
  for (int64_t chunk = p.C - 1; chunk >= 0; --chunk) {
    next_k.write(K);
    next_q.write(Q);
    next_g.write(G);
    factors.set(next_rate);
    if (threadIdx.x < kWarps * kT) sums[threadIdx.x] = 0;
    __syncthreads();

    // Reconstruct the state at the start of the chunk, recompute the outputs of this state, and backpropagate through
    // its update.
    add_chunk(W, ScaledColumnsOf<kRow>{G, factors.steps}, exact<Token>(RowsOf<kRow>{K}));
    share(W, W_shared);
    if (threadIdx.x < kDim) bias[threadIdx.x] += stepped_sum<kT, kRow>(factors.steps, G);
    Outputs y, d_g, d_q, d_k;
    Square overlap;
    {
      Outputs z;
      pair_product<kDim>(z, exact<Token>(PairsOf<kRow>{K}), OverRows{W});
      write_tile(z, Z);
    }
    OwnRows<Token, kWarps> v, d_out;  // the loads are in flight while the block does other work
    d_out.read(block, p.d_out, chunk);
    pair_product<kDim>(y, exact<Token>(PairsOf<kRow>{Q}), OverRows{W});
    pair_product<kDim>(d_g, exact<Token>(PairsOf<kRow>{K}), OverRows{D});
    pair_product<kDim>(overlap, exact<Token>(PairsOf<kRow>{Q}), exact<Token>(PairColumns<Square, kRow>(K)));
    overlap.each([&](int i, int j, float& a, float& b) {
      a += 1, b += 1;
      set_pair(P + i * kSquare + j, a * factors(i, j), b * factors(i, j + 1));
    });
    d_g.add_rows(sums, [&](int i, int j, float& a, float& b) {
      a += d_bias[j], b += d_bias[j + 1];
      const float2 g = pair(G + i * kRow + j);
      return -(a * g.x + b * g.y);
    });
    elements(d_g, [&](float& a, int, int e) { a *= -factors.steps[row_of(e)]; });
    __syncthreads();

    product<kT>(y, minus(RowsOf<kSquare>{P}), RowsOf<kRow>{G});
    y.each([&](int i, int j, float& a, float& b) { set_pair(Y + i * kRow + j, a + bias[j], b + bias[j + 1]); });
    __syncthreads();

    // Backpropagate through the norm that is applied to the model's outputs.
    {
      const InnerLoss loss(p, block.head());
      Rows4::each([&](int m) {
        const float2 d_y = through_output(loss, pair(Rows4::at(Y, m)), d_out[m], by_weight, by_norm_bias);
        set_rounded_pair(Rows4::at(Y, m), d_y.x, d_y.y);
      });
    }
    __syncthreads();

    v.read(block, p.v, chunk);
    product<kT>(d_g, minus(ColumnsOf<kSquare>{P}), rounded(RowsOf<kRow>{Y}));
    write_tile(d_g, X);
    {
      Square d;
      pair_product<kDim>(d, rounded(PairsOf<kRow>{Y}), PairColumns<Square, kRow>(G));
      elements(overlap, [&](float& a, int m, int e) { a *= -d.c[m][e]; });
      d.each([&](int i, int j, float& a, float& b) {
        set_pair(R + i * kSquare + j, -a * factors(i, j), -b * factors(i, j + 1));
      });
      overlap.each([&](int i, int j, float& a, float& b) { set_pair(S + i * kSquare + j, a, b); });
    }
    pair_product<kDim>(d_q, rounded(PairsOf<kRow>{Y}), rounded(OverColumns(W_shared)));
    pair_product<kDim>(
        d_k,
        [&](int i, int k) {
          const float2 g = pair(G + i * kRow + k);
          return make_float2(-factors.steps[i] * g.x, -factors.steps[i] * g.y);
        },
        rounded(OverColumns(D_shared)));
    __syncthreads();

    // Backpropagate through the inner loss.
    {
      const InnerLoss loss(p, block.head());
      Rows4::each([&](int m) {
        const float2 b = pair(bias + 2 * lane()), k = pair(Rows4::at(K, m)), value = v[m], z = pair(Rows4::at(Z, m));
        float2 d_target;
        const float2 d_z =
            loss.backward(make_float2(z.x + b.x, z.y + b.y), make_float2(value.x - k.x, value.y - k.y),
                          pair(Rows4::at(G, m)), pair(Rows4::at(X, m)), d_target, by_weight, by_norm_bias);
        OwnRows<Token, kWarps>::write(block, p.d_v, chunk, m, d_target);
        set_pair(Rows4::at(Z, m), d_target.x, d_target.y);
        set_rounded_pair(Rows4::at(X, m), d_z.x, d_z.y);
      });
    }
    by_factors<kWarps>(block, chunk, factors, S, sums, d_scale);
    __syncthreads();

    if (chunk > 0) fetch_chunk(chunk - 1);
    product<kT>(d_q, RowsOf<kSquare>{R}, exact<Token>(RowsOf<kRow>{K}));
    pair_product<kDim>(d_k, rounded(PairsOf<kRow>{X}), rounded(OverColumns(W_shared)));
    product<kT>(d_k, ColumnsOf<kSquare>{R}, exact<Token>(RowsOf<kRow>{Q}));
    add_chunk(D, rounded(ColumnsOf<kRow>{Y}), exact<Token>(RowsOf<kRow>{Q}));
    add_chunk(D, rounded(ColumnsOf<kRow>{X}), exact<Token>(RowsOf<kRow>{K}));
    share(D, D_shared);
    if (threadIdx.x < kDim) d_bias[threadIdx.x] += column_sum<kT, kRow>(Y) + column_sum<kT, kRow>(X);
    write_tile(d_q, G);
    d_k.each([&](int i, int j, float& a, float& b) {
      float* const to = Z + i * kRow + j;
      const float2 d_target = pair(to);
      set_pair(to, a - d_target.x, b - d_target.y);
    });
    __syncthreads();
    d_out.read(block, p.d_out, chunk);
    Rows4::each([&](int m) {
      const float2 d = d_out[m], by_q = pair(Rows4::at(G, m));
      OwnRows<Token, kWarps>::write(block, p.d_q, chunk, m, make_float2(d.x + by_q.x, d.y + by_q.y));
      OwnRows<Token, kWarps>::write(block, p.d_k, chunk, m, pair(Rows4::at(Z, m)));
    });
    __syncwarp();  // the gradients of the next chunk overwrite memory that other lanes of the warp may still read
  }

  write(D, p.last.d_W + block.n() * kDim * kDim);
  if (threadIdx.x < kDim) p.last.d_b[block.n() * kDim + threadIdx.x] = d_bias[threadIdx.x];
  if (threadIdx.x < kT) p.d_scale[block.n() * kT + threadIdx.x] = d_scale[threadIdx.x];
  set_pair(Y + warp() * kRow + 2 * lane(), by_weight.x, by_weight.y);
  set_pair(X + warp() * kRow + 2 * lane(), by_norm_bias.x, by_norm_bias.y);
  __syncthreads();
  if (threadIdx.x < kDim) {
    p.d_norm_weight[block.n() * kDim + threadIdx.x] = column_sum<kWarps, kRow>(Y);
    p.d_norm_bias[block.n() * kDim + threadIdx.x] = column_sum<kWarps, kRow>(X);
  }
}

}  // namespace lazy::ops::cuda::learning

namespace lazy::ops::cuda {

bool serves_ttt(int64_t H) {
  const int needed = H == 0 ? learning::bytes(learning::kBackwardFloats) : learning::ttt_mlp_memory(H);
  return needed > 0 && needed <= most_shared_memory("fast_weights");
}

void ttt_forward(const TttProblem& p, cudaStream_t stream) {
  using namespace learning;
  if (p.H > 0) return ttt_mlp_forward(p, stream);
  with_tokens(p, [&](auto token) {
    launch(linear_forward<decltype(token)>, kThreads, bytes(kForwardFloats), p, stream, p.heads);
  });
}

void ttt_backward(const TttProblem& p, cudaStream_t stream) {
  using namespace learning;
  if (p.H > 0) return ttt_mlp_backward(p, stream);
  with_tokens(p, [&](auto token) {
    launch(linear_backward<decltype(token)>, kThreads, bytes(kBackwardFloats), p, stream, p.heads);
  });
}

}  // namespace lazy::ops::cuda
