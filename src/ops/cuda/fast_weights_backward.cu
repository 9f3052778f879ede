// The backward pass of fast weights. A block iterates over the chunks of a sequence and head in reverse order. In each
// chunk it backpropagates through the update of the state, the outputs and the inner-loss gradients. Between the
// chunks, the gradients with respect to the state (weights W, biases b, momentum S) are stored in d_W, d_b and d_S.
#include "ops/cuda/fast_weights.cuh"

namespace lazy::ops::cuda::learning {

namespace {

template <int T, int WARPS>
struct BackwardLayout {
  static constexpr int kGroups = Share<WARPS, T, kDim>::kColumnGroups;
  static constexpr int kBytes =
      (7 * kTokens<T> + 2 * kWeights + 4 * T + 4 * kGroups * T + 3 * WARPS) * static_cast<int>(sizeof(float));
};
template <int T>
constexpr int kWarps = T == 16 ? 8 : 16;
template <int T>
constexpr int kBytes = BackwardLayout<T, kWarps<T>>::kBytes;

// Multiplies row i of x by factor[i] and subtracts the result from `to`.
template <int WARPS, int M, int N>
__device__ void subtract(Share<WARPS, M, N>& to, const Share<WARPS, M, N>& x, const float* factor) {
#pragma unroll
  for (int n = 0; n < Share<WARPS, M, N>::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) to.c[n][e] -= factor[to.row() + e / 2 * 8 + lane() / 4] * x.c[n][e];
  }
}

}  // namespace

// TWO: the model has two layers, not one. MOMENTUM: the state has momentum and the layers have no biases.
template <int T, bool TWO, bool MOMENTUM>
__global__ void __launch_bounds__(32 * kWarps<T>, T == 16 ? 2 : 1)
    backward(const __grid_constant__ FastWeightsProblem p) {
  constexpr int kWarp = kWarps<T>, kThreads = 32 * kWarp, kGroups = BackwardLayout<T, kWarp>::kGroups;
  constexpr float kBias = MOMENTUM ? 0 : 1;
  static_assert(2 * kWarp <= T);  // at the end, tile P stores two rows of partial sums per warp
  using Outputs = Share<kWarp, T, kDim>;
  using Square = Share<kWarp, T, T>;
  using Matrix = Share<kWarp, kDim, kDim>;
  extern __shared__ __align__(128) float memory[];
  float *const K = memory, *const Q = K + kTokens<T>, *const D = Q + kTokens<T>;  // tiles of k, q and d_out
  // The overlap of a layer is the matrix of inner products of its inputs for the queries q and its inputs for the keys
  // k (see fast_weights.cuh). Tile R contains the gradient of the last layer's overlap, and later of the first layer's
  // overlap. Tile P contains the elementwise product of the first layer's overlap and read_steps.
  float *const R = D + kTokens<T>, *const P = R + kTokens<T>;
  float *const X = P + kTokens<T>, *const Y = X + kTokens<T>;
  float *const W = Y + kTokens<T>, *const V = W + kWeights;
  float *const steps = V + kWeights, *const momentum_steps = steps + T, *const read_keep = momentum_steps + T,
               *const read_carry = read_keep + T;
  // Gradients of the four per-token factors (steps, momentum_steps, read_keep, read_carry). Each gradient has one
  // partial sum per token and group of columns.
  float* const sums = read_carry + T;
  float *const sum_steps = sums, *const sum_momentum = sums + kGroups * T, *const sum_keep = sums + 2 * kGroups * T,
               *const sum_carry = sums + 3 * kGroups * T;
  float* const dots = sums + 4 * kGroups * T;

  const int64_t n = blockIdx.x;
  const int H = static_cast<int>(p.H);
  const int slices = TWO ? H / kDim : 1;
  const Gelu act{p.tanh};
  const FastWeightsLayer &first = p.first, &last = p.last;
  const auto load = [&](float* tile, const float* from) { fetch<T, kThreads>(tile, from, kDim); };
  const auto load_hidden = [&](float* tile, const float* from) { fetch<T, kThreads>(tile, from, H); };
  const auto load_first = [&](float* tile, const float* from) { fetch<kDim, kThreads>(tile, from, H); };
  const auto load_last = [&](float* tile, const float* from) { fetch<kDim, kThreads>(tile, from, kDim); };
  if (p.norm_weight && threadIdx.x < kDim) {
    p.d_norm_weight[n * kDim + threadIdx.x] = p.d_norm_bias[n * kDim + threadIdx.x] = 0;
  }
  const TokenIndex own{n, p.H, T};  // offsets in tensors that have one entry per sequence and head and no chunk axis

  for (int64_t chunk = p.C - 1; chunk >= 0; --chunk) {
    const TokenIndex at{chunk * p.N + n, p.H, T};
    const float keep = MOMENTUM ? p.keep[at.index] : 1, carry = MOMENTUM ? p.carry[at.index] : 0,
                momentum_keep = MOMENTUM ? p.momentum_keep[at.index] : 0;
    const float* const read_steps = p.read_steps + at.index * T * T;
    const float* const overlaps = p.overlap + at.index * T * T;
    float* const d_read_steps = p.d_read_steps + at.index * T * T;
    float d_keep = 0, d_carry = 0, d_momentum_keep = 0;

    load(K, at.tokens(p.k));
    load(Q, at.tokens(p.q));
    load(D, at.tokens(p.d_out));
    if (threadIdx.x < T) {
      const int64_t token = at.index * T + threadIdx.x;
      steps[threadIdx.x] = p.steps[token];
      if constexpr (MOMENTUM) {
        momentum_steps[threadIdx.x] = p.momentum_steps[token];
        read_keep[threadIdx.x] = p.read_keep[token];
        read_carry[threadIdx.x] = p.read_carry[token];
      }
    }
    for (int i = threadIdx.x; i < 4 * kGroups * T; i += kThreads) sums[i] = 0;

    // Last layer: compute d_g, the gradient of the outer loss with respect to g, which is the gradient of the inner
    // loss with respect to the layer's output. The update of the state and the outputs of the chunk contribute to d_g.
    Outputs d_g, d_k, d_q;
    {
      Outputs by, by_momentum;
      for (int s = 0; s < slices; ++s) {
        if constexpr (TWO) load_hidden(Y, p.u + at.hidden(s));
        load_last(W, last.d_W + own.last(s));
        if constexpr (MOMENTUM) load_last(V, last.d_S + own.last(s));
        arrive();
        product<kDim>(by, Rows{TWO ? Y : K}, Rows{W});
        if constexpr (MOMENTUM) product<kDim>(by_momentum, Rows{TWO ? Y : K}, Rows{V});
        __syncthreads();
      }
      load(Y, at.tokens(last.g));
      Square d_steps;
      d_steps.each([&](int i, int j, float&, float&) {
        const float2 step = pair(read_steps + i * T + j), overlap = pair(overlaps + i * T + j);
        set_pair(X + i * kStep + j, step.x * overlap.x, step.y * overlap.y);
      });
      arrive();
      by.add_rows(sum_steps, [&](int i, int j, float& a, float& b) {
        if constexpr (!MOMENTUM) a += last.d_b[own.last_bias() + j], b += last.d_b[own.last_bias() + j + 1];
        const float2 g = pair(Y + i * kStep + j);
        return -(a * g.x + b * g.y);
      });
      subtract(d_g, by, steps);
      if constexpr (MOMENTUM) {
        by_momentum.add_rows(sum_momentum, [&](int i, int j, float& a, float& b) {
          const float2 g = pair(Y + i * kStep + j);
          return -(a * g.x + b * g.y);
        });
        subtract(d_g, by_momentum, momentum_steps);
      }
      product<T>(d_g, minus(Columns{X}), Rows{D});
      product<kDim>(d_steps, minus(Rows{D}), Columns{Y});
      d_steps.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * T + j), overlap = pair(overlaps + i * T + j);
        set_pair(R + i * kStep + j, a * step.x, b * step.y);
        set_pair(d_read_steps + i * T + j, a * overlap.x, b * overlap.y);
      });
      __syncthreads();
    }

    // Backpropagates through one slice of a layer's state. Tiles W and V contain the gradients with respect to the
    // layer's weights W and momentum S after the chunk. d_W and d_S receive the gradients with respect to the state
    // before the chunk; the update and the outputs both contribute to them. `a` is the input of the layer for the
    // queries q, and d_y is the gradient of the layer's outputs for the queries q.
    const auto through_state = [&](const float* a, const float* d_y, const FastWeightsLayer& layer, int64_t from,
                                   int64_t to, int step) {
      {
        Matrix by;
        if constexpr (MOMENTUM) {
          product<T>(by, ScaledColumns{a, read_keep}, Rows{d_y});
        } else {
          product<T>(by, Columns{a}, Rows{d_y});
        }
        by.each([&](int i, int j, float& x, float& y) {
          const float2 d = pair(W + i * kStep + j);
          set_pair(layer.d_W + to + i * step + j, x + keep * d.x, y + keep * d.y);
          if constexpr (MOMENTUM) {
            const float2 w = pair(layer.W + from + i * step + j), s = pair(layer.S + from + i * step + j);
            d_keep += w.x * d.x + w.y * d.y;
            d_carry += s.x * d.x + s.y * d.y;
          }
        });
      }
      if constexpr (MOMENTUM) {
        Matrix by;
        product<T>(by, ScaledColumns{a, read_carry}, Rows{d_y});
        by.each([&](int i, int j, float& x, float& y) {
          const float2 d = pair(W + i * kStep + j), e = pair(V + i * kStep + j);
          const float2 s = pair(layer.S + from + i * step + j);
          d_momentum_keep += s.x * e.x + s.y * e.y;
          set_pair(layer.d_S + to + i * step + j, x + carry * d.x + momentum_keep * e.x,
                   y + carry * d.y + momentum_keep * e.y);
        });
      }
    };
    // Backpropagates the gradient d_y of a layer's outputs for the queries q to the layer's input `a` for the queries
    // q, through the products with W and S, and adds the result to d_a.
    const auto through_reading = [&](Outputs& d_a, const float* a, const float* d_y) {
      const auto part = [&](const float* matrix, const float* share, float* sum) {
        Outputs back;
        product<kDim>(back, Rows{d_y}, Columns{matrix});
        back.add_rows(sum, [&](int i, int j, float& x, float& y) {
          const float2 input = pair(a + i * kStep + j);
          return x * input.x + y * input.y;
        });
#pragma unroll
        for (int m = 0; m < Outputs::kTiles; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) d_a.c[m][e] += share[back.row() + e / 2 * 8 + lane() / 4] * back.c[m][e];
        }
      };
      if constexpr (MOMENTUM) {
        part(W, read_keep, sum_keep);
        part(V, read_carry, sum_carry);
      } else {
        product<kDim>(d_a, Rows{d_y}, Columns{W});
      }
    };
    // Adds left^T * right, which is the gradient of a slice of a layer's weights, to the matrix at `to`.
    const auto add_matrix = [&](const float* left, const float* right, float* to, int step) {
      Matrix by;
      product<T>(by, Columns{left}, Rows{right});
      by.each([&](int i, int j, float& a, float& b) {
        const float2 before = pair(to + i * step + j);
        set_pair(to + i * step + j, before.x + a, before.y + b);
      });
    };
    // `share` is a contribution to the gradient of the tokens (q or k). Adds it to the gradient `all` in global memory,
    // or overwrites the previous contents if first_one is true. With two layers, every slice of the hidden dimension
    // contributes.
    const auto add_tokens = [&](Outputs& share, float* all, bool first_one) {
      share.each([&](int i, int j, float& a, float& b) {
        float* const to = at.tokens(all) + i * kDim + j;
        const float2 before = first_one ? float2{} : pair(to);
        set_pair(to, before.x + a, before.y + b);
      });
    };
    // Backpropagates through the update of a layer's state to the layer's input for the keys k, and adds the result to
    // d_u.
    const auto through_steps = [&](Outputs& d_u, const float* g) {
      product<kDim>(d_u, minus(ScaledRows{g, steps}), Columns{W});
      if constexpr (MOMENTUM) product<kDim>(d_u, minus(ScaledRows{g, momentum_steps}), Columns{V});
    };

    Square d_steps;  // gradient of the elementwise product of the first layer's overlap and read_steps
    if constexpr (TWO) {
      Square overlap;
      product<kDim>(overlap, Rows{Q}, Columns{K});
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * T + j);
        set_pair(P + i * kStep + j, (a + kBias) * step.x, (b + kBias) * step.y);
      });
    }
    for (int s = 0; s < slices; ++s) {
      // Last layer: backpropagate through the outputs for the queries q and through the update of the state.
      if constexpr (TWO) load_hidden(X, p.x + at.hidden(s)), load_hidden(Y, p.u + at.hidden(s));
      load_last(W, last.W + at.last(s));
      if constexpr (MOMENTUM) load_last(V, last.S + at.last(s));
      arrive();
      if constexpr (TWO) {
        for (int i = threadIdx.x; i < T * kDim; i += kThreads) {
          float& x = X[i / kDim * kStep + i % kDim];
          x = act.value(x);
        }
        __syncthreads();
      }
      const float *const a = TWO ? X : Q, *const u = TWO ? Y : K;
      Outputs d_a_own, d_u_own;
      Outputs &d_a = TWO ? d_a_own : d_q, &d_u = TWO ? d_u_own : d_k;
      through_reading(d_a, a, D);
      product<T>(d_a, Rows{R}, Rows{u});
      product<T>(d_u, Columns{R}, Rows{a});
      __syncthreads();
      load(Y, at.tokens(last.g));
      load_last(W, last.d_W + own.last(s));
      if constexpr (MOMENTUM) load_last(V, last.d_S + own.last(s));
      arrive();
      through_steps(d_u, Y);
      through_state(a, D, last, at.last(s), own.last(s), kDim);
      __syncthreads();
      if constexpr (TWO) {
        d_u.each([&](int i, int j, float& x, float& y) { set_pair(p.d_u + own.hidden(s) + i * H + j, x, y); });
        // First layer: backpropagate through the outputs for the queries q and through the update of the state. Tile X
        // becomes the gradient of the first layer's output for the queries q.
        d_a.each([&](int i, int j, float& x, float& y) {
          const float2 z = pair(p.x + at.hidden(s) + i * H + j);
          set_pair(X + i * kStep + j, x * act.slope(z.x), y * act.slope(z.y));
        });
        load_first(W, first.W + at.first(s));
        if constexpr (MOMENTUM) load_first(V, first.S + at.first(s));
        arrive();
        {
          Outputs by_slice;
          through_reading(by_slice, Q, X);
          add_tokens(by_slice, p.d_q, s == 0);
        }
        const float by_bias = !MOMENTUM && threadIdx.x < kDim ? column_sum<T>(X) : 0;
        __syncthreads();
        load_hidden(Y, first.g + at.hidden(s));
        load_first(W, first.d_W + own.first(s));
        if constexpr (MOMENTUM) load_first(V, first.d_S + own.first(s));
        arrive();
        const auto through_update = [&](Outputs& to, const float* matrix, const float* factor, float* sum,
                                        bool biased) {
          Outputs back;
          product<kDim>(back, Rows{K}, Rows{matrix});
          back.add_rows(sum, [&](int i, int j, float& x, float& y) {
            if (biased) x += first.d_b[own.first_bias(s) + j], y += first.d_b[own.first_bias(s) + j + 1];
            const float2 g = pair(Y + i * kStep + j);
            return -(x * g.x + y * g.y);
          });
          subtract(to, back, factor);
        };
        Outputs d_first_g;
        through_update(d_first_g, W, steps, sum_steps, !MOMENTUM);
        if constexpr (MOMENTUM) through_update(d_first_g, V, momentum_steps, sum_momentum, false);
        product<T>(d_first_g, minus(Columns{P}), Rows{X});
        {
          Outputs by_slice;
          through_steps(by_slice, Y);
          add_tokens(by_slice, p.d_k, s == 0);
        }
        product<kDim>(d_steps, minus(Rows{X}), Columns{Y});
        through_state(Q, X, first, at.first(s), own.first(s), H);
        __syncthreads();
        if constexpr (!MOMENTUM) {
          if (threadIdx.x < kDim) first.d_b[own.first_bias(s) + threadIdx.x] += by_bias;
        }
        // Backpropagate through the inner backward pass, which computes the first layer's inner-loss gradient from the
        // last layer's inner-loss gradient. Tile X becomes the gradient with respect to t, which is the gradient of the
        // inner loss with respect to the last layer's input.
        load(Y, at.tokens(last.g));
        load_last(W, last.W + at.last(s));
        d_first_g.each([&](int i, int j, float& x, float& y) {
          const int64_t place = at.hidden(s) + i * H + j;
          const float2 z = pair(first.z + place), t = pair(p.t + place);
          set_pair(p.d_z + own.hidden(s) + i * H + j, x * act.bend(z.x) * t.x, y * act.bend(z.y) * t.y);
          set_pair(X + i * kStep + j, x * act.slope(z.x), y * act.slope(z.y));
        });
        arrive();
        product<kDim>(d_g, Rows{X}, Rows{W});
        add_matrix(X, Y, last.d_W + own.last(s), kDim);
        __syncthreads();
      }
    }
    if constexpr (TWO) {
      Square overlap;
      product<kDim>(overlap, Rows{Q}, Columns{K});
#pragma unroll
      for (int m = 0; m < Square::kTiles; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) overlap.c[m][e] = (overlap.c[m][e] + kBias) * d_steps.c[m][e];
      }
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 before = pair(d_read_steps + i * T + j);
        set_pair(d_read_steps + i * T + j, before.x + a, before.y + b);
      });
      d_steps.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * T + j);
        set_pair(R + i * kStep + j, a * step.x, b * step.y);
      });
      __syncthreads();
      product<T>(d_q, Rows{R}, Rows{K});
      product<T>(d_k, Columns{R}, Rows{Q});
    }
    add_tokens(d_q, p.d_q, !TWO);

    // Backpropagate through the inner loss. Tile X becomes the gradient of the last layer's output for the keys k.
    d_g.each([&](int i, int j, float& a, float& b) { set_pair(X + i * kStep + j, a, b); });
    load(Y, at.tokens(last.g));
    if constexpr (!TWO) load_last(W, last.W + at.last(0));
    arrive();
    const InnerLoss loss(p, n);
    float2 by_weight{}, by_bias{};
    for (int row = warp(); row < T; row += kWarp) {
      const int64_t place = at.index * T * kDim + row * kDim + 2 * lane();
      float* const d = X + row * kStep + 2 * lane();
      float2 d_target;
      const float2 d_z = loss.backward(pair(last.z + place), pair(p.target + place), pair(Y + row * kStep + 2 * lane()),
                                       pair(d), d_target, by_weight, by_bias);
      set_pair(p.d_target + place, d_target.x, d_target.y);
      set_pair(d, d_z.x, d_z.y);
    }
    if (p.norm_weight) {  // tile P is reused; the first layer no longer needs its contents
      set_pair(P + warp() * kStep + 2 * lane(), by_weight.x, by_weight.y);
      set_pair(P + (kWarp + warp()) * kStep + 2 * lane(), by_bias.x, by_bias.y);
    }
    __syncthreads();
    if (p.norm_weight && threadIdx.x < kDim) {
      p.d_norm_weight[n * kDim + threadIdx.x] += column_sum<kWarp>(P);
      p.d_norm_bias[n * kDim + threadIdx.x] += column_sum<kWarp>(P + kWarp * kStep);
    }

    // Backpropagate through the inner forward pass (the layers with input k), from the last layer to the first.
    if constexpr (!MOMENTUM) {
      if (threadIdx.x < kDim) last.d_b[own.last_bias() + threadIdx.x] += column_sum<T>(D) + column_sum<T>(X);
    }
    if constexpr (TWO) {
      for (int s = 0; s < slices; ++s) {
        load_hidden(Y, p.u + at.hidden(s));
        load_last(W, last.W + at.last(s));
        load_first(V, first.W + at.first(s));
        arrive();
        add_matrix(Y, X, last.d_W + own.last(s), kDim);
        Outputs d_u;
        product<kDim>(d_u, Rows{X}, Columns{W});
        __syncthreads();
        d_u.each([&](int i, int j, float& a, float& b) {
          const int64_t to = own.hidden(s) + i * H + j;
          const float2 before = pair(p.d_u + to), d_z = pair(p.d_z + to), z = pair(first.z + at.hidden(s) + i * H + j);
          set_pair(Y + i * kStep + j, d_z.x + (a + before.x) * act.slope(z.x), d_z.y + (b + before.y) * act.slope(z.y));
        });
        __syncthreads();
        add_matrix(K, Y, first.d_W + own.first(s), H);
        product<kDim>(d_k, Rows{Y}, Columns{V});
        if constexpr (!MOMENTUM) {
          if (threadIdx.x < kDim) first.d_b[own.first_bias(s) + threadIdx.x] += column_sum<T>(Y);
        }
        __syncthreads();
      }
    } else {
      add_matrix(K, X, last.d_W + own.last(0), kDim);
      product<kDim>(d_k, Rows{X}, Columns{W});
    }
    add_tokens(d_k, p.d_k, !TWO);
    if constexpr (MOMENTUM) {
      const float all[3] = {warp_sum(d_keep), warp_sum(d_carry), warp_sum(d_momentum_keep)};
      if (lane() == 0) {
#pragma unroll
        for (int i = 0; i < 3; ++i) dots[i * kWarp + warp()] = all[i];
      }
    }
    __syncthreads();
    if (threadIdx.x < T) {
      const auto total = [&](const float* sum) {
        float x = 0;
        for (int group = 0; group < kGroups; ++group) x += sum[group * T + threadIdx.x];
        return x;
      };
      const int64_t token = at.index * T + threadIdx.x;
      p.d_steps[token] = total(sum_steps);
      if constexpr (MOMENTUM) {
        p.d_momentum_steps[token] = total(sum_momentum);
        p.d_read_keep[token] = total(sum_keep);
        p.d_read_carry[token] = total(sum_carry);
      }
    }
    if (MOMENTUM && threadIdx.x < 3) {
      float x = 0;
      for (int i = 0; i < kWarp; ++i) x += dots[threadIdx.x * kWarp + i];
      (threadIdx.x == 0 ? p.d_keep : threadIdx.x == 1 ? p.d_carry : p.d_momentum_keep)[at.index] = x;
    }
    __syncthreads();
  }
}

int backward_memory(bool momentum) { return momentum ? kBytes<64> : kBytes<16>; }

}  // namespace lazy::ops::cuda::learning

namespace lazy::ops::cuda {

void fast_weights_backward(const FastWeightsProblem& p, cudaStream_t stream) {
  if (learning::backward_in_cluster(p, stream)) return;
  learning::each_layer(p, [&](int64_t numbers, const FastWeightsLayer& layer) {
    learning::copy_to_place(layer.d_W, layer.d_W_end, numbers, stream);
    learning::copy_to_place(layer.d_S, layer.d_S_end, numbers, stream);
  });
  learning::with_shape(p, [&](auto T, auto two, auto momentum) {
    learning::launch(learning::backward<T(), two(), momentum()>, 32 * learning::kWarps<T()>, learning::kBytes<T()>, p,
                     stream);
  });
}

}  // namespace lazy::ops::cuda
