// The forward pass of fast weights. A block iterates over the chunks of a sequence and head. For each chunk it computes
// the inner-loss gradients of the tokens, the state of the next chunk, and the outputs for the queries q.
#include "ops/cuda/fast_weights.cuh"

namespace lazy::ops::cuda::learning {

namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

template <int T>
constexpr int kBytes = (4 * kTokens<T> + 2 * kWeights + 4 * T) * static_cast<int>(sizeof(float));

}  // namespace

// TWO: the model has two layers, not one. MOMENTUM: the state has momentum and the layers have no biases.
template <int T, bool TWO, bool MOMENTUM>
__global__ void __launch_bounds__(kThreads, 2) forward(const __grid_constant__ FastWeightsProblem p) {
  extern __shared__ __align__(128) float memory[];
  float *const A = memory, *const B = A + kTokens<T>, *const X = B + kTokens<T>, *const Y = X + kTokens<T>;
  float *const W = Y + kTokens<T>, *const V = W + kWeights;
  float *const steps = V + kWeights, *const momentum_steps = steps + T, *const read_keep = momentum_steps + T,
               *const read_carry = read_keep + T;
  using Outputs = Share<kWarps, T, kDim>;
  using Square = Share<kWarps, T, T>;
  using Matrix = Share<kWarps, kDim, kDim>;
  constexpr float kBias = MOMENTUM ? 0 : 1;
  const int64_t n = blockIdx.x;
  const int H = static_cast<int>(p.H);
  const int slices = TWO ? H / kDim : 1;
  const Gelu act{p.tanh};
  const auto load = [&](float* tile, const float* from) { fetch<T, kThreads>(tile, from, kDim); };
  const auto load_hidden = [&](float* tile, const float* from) { fetch<T, kThreads>(tile, from, H); };
  const auto load_first = [&](float* tile, const float* from) { fetch<kDim, kThreads>(tile, from, H); };
  const auto load_last = [&](float* tile, const float* from) { fetch<kDim, kThreads>(tile, from, kDim); };
  const auto read_product = [&](Outputs& y, const float* left) {
    if constexpr (MOMENTUM) {
      product<kDim>(y, ScaledRows{left, read_keep}, Rows{W});
      product<kDim>(y, ScaledRows{left, read_carry}, Rows{V});
    } else {
      product<kDim>(y, Rows{left}, Rows{W});
    }
  };
  const InnerLoss loss(p, n);

  for (int64_t chunk = 0; chunk < p.C; ++chunk) {
    const TokenIndex at{chunk * p.N + n, p.H, T};
    const bool ends = chunk + 1 == p.C;
    const TokenIndex after{ends ? n : at.index + p.N, p.H, T};
    // Returns the address where the next state is stored. After the last chunk this is the output tensor, or null if
    // the final state is not requested. Otherwise it is the memory of the next chunk.
    const auto next = [&](float* all, float* at_the_end) { return ends ? at_the_end : all; };
    const FastWeightsLayer &first = p.first, &last = p.last;

    // Compute the inner-loss gradients of the tokens. Tile A contains k. Tile B contains the gradient of the inner loss
    // with respect to the last layer's output.
    load(A, at.tokens(p.k));
    TWO ? load_first(W, first.W + at.first(0)) : load_last(W, last.W + at.last(0));
    if (threadIdx.x < T) {
      const int64_t token = at.index * T + threadIdx.x;
      steps[threadIdx.x] = p.steps[token];
      if constexpr (MOMENTUM) {
        momentum_steps[threadIdx.x] = p.momentum_steps[token];
        read_keep[threadIdx.x] = p.read_keep[token];
        read_carry[threadIdx.x] = p.read_carry[token];
      }
    }
    Outputs z;
    if constexpr (TWO) {
      for (int s = 0; s < slices; ++s) {
        if (s > 0) load_first(W, first.W + at.first(s));
        load_last(V, last.W + at.last(s));
        arrive();
        Outputs y;
        product<kDim>(y, Rows{A}, Rows{W});
        y.each([&](int i, int j, float& a, float& b) {
          if constexpr (!MOMENTUM) a += first.b[at.first_bias(s) + j], b += first.b[at.first_bias(s) + j + 1];
          const int64_t to = at.hidden(s) + i * H + j;
          const float u = act.value(a), v = act.value(b);
          set_pair(first.z + to, a, b);
          set_pair(p.u + to, u, v);
          set_pair(X + i * kStep + j, u, v);
        });
        __syncthreads();
        product<kDim>(z, Rows{X}, Rows{V});
        __syncthreads();
      }
    } else {
      arrive();
      product<kDim>(z, Rows{A}, Rows{W});
    }
    z.each([&](int i, int j, float& a, float& b) {
      if constexpr (!MOMENTUM) a += last.b[at.last_bias() + j], b += last.b[at.last_bias() + j + 1];
      set_pair(X + i * kStep + j, a, b);
    });
    __syncthreads();
    for (int row = warp(); row < T; row += kWarps) {
      const int64_t place = at.index * T * kDim + row * kDim + 2 * lane();
      float2 y = pair(X + row * kStep + 2 * lane());
      const float2 g = loss.gradient(y, pair(p.target + place));
      set_pair(last.z + place, y.x, y.y);
      set_pair(last.g + place, g.x, g.y);
      set_pair(B + row * kStep + 2 * lane(), g.x, g.y);
    }
    __syncthreads();

    // Compute the state after the chunk.
    float *const W_last = next(last.W, last.W_end), *const S_last = next(last.S, last.S_end);
    float *const W_first = next(first.W, first.W_end), *const S_first = next(first.S, first.S_end);
    // Computes a slice of a layer's W and S after the chunk. `from` is the offset of the slice in the current W and S.
    // u is the layer's input, and g is its inner-loss gradient. Stores the slice at offset `to` of to_W and of to_S,
    // with row stride `step`.
    const auto advance = [&](const float* u, const float* g, const FastWeightsLayer& layer, int64_t from, float* to_W,
                             float* to_S, int64_t to, int step) {
      Matrix by;
      product<T>(by, ScaledColumns{u, steps}, Rows{g});
      const float keep = MOMENTUM ? p.keep[at.index] : 1, carry = MOMENTUM ? p.carry[at.index] : 0;
      by.each([&](int i, int j, float& a, float& b) {
        const float2 w = pair(layer.W + from + i * step + j);
        float2 s{};
        if constexpr (MOMENTUM) s = pair(layer.S + from + i * step + j);
        set_pair(to_W + to + i * step + j, keep * w.x + carry * s.x - a, keep * w.y + carry * s.y - b);
      });
      if constexpr (MOMENTUM) {
        Matrix momentum;
        product<T>(momentum, ScaledColumns{u, momentum_steps}, Rows{g});
        const float momentum_keep = p.momentum_keep[at.index];
        momentum.each([&](int i, int j, float& a, float& b) {
          const float2 s = pair(layer.S + from + i * step + j);
          set_pair(to_S + to + i * step + j, momentum_keep * s.x - a, momentum_keep * s.y - b);
        });
      }
    };
    // Computes the next bias, b - sum_t steps_t g_t, for the 64 columns of a tile.
    const auto advance_bias = [&](const float* g, const float* from, float* to) {
      if (threadIdx.x < kDim) to[threadIdx.x] = from[threadIdx.x] - stepped_sum<T, kStep>(steps, g);
    };
    if constexpr (TWO) {
      for (int s = 0; s < slices; ++s) {
        load_last(W, last.W + at.last(s));
        load_hidden(X, p.u + at.hidden(s));
        arrive();
        Outputs t;
        product<kDim>(t, Rows{B}, Columns{W});
        t.each([&](int i, int j, float& a, float& b) {
          const int64_t to = at.hidden(s) + i * H + j;
          set_pair(p.t + to, a, b);
          const float2 y = pair(first.z + to);
          a *= act.slope(y.x), b *= act.slope(y.y);
          set_pair(first.g + to, a, b);
          set_pair(Y + i * kStep + j, a, b);
        });
        __syncthreads();
        if (W_last) {
          advance(X, B, last, at.last(s), W_last, S_last, after.last(s), kDim);
          advance(A, Y, first, at.first(s), W_first, S_first, after.first(s), H);
          if constexpr (!MOMENTUM) {
            advance_bias(Y, first.b + at.first_bias(s), next(first.b, first.b_end) + after.first_bias(s));
          }
        }
        __syncthreads();
      }
    } else if (W_last) {
      advance(A, B, last, at.last(0), W_last, S_last, after.last(0), kDim);
    }
    if constexpr (!MOMENTUM) {
      if (W_last) advance_bias(B, last.b + at.last_bias(), next(last.b, last.b_end) + after.last_bias());
    }
    __syncthreads();

    // Compute the outputs for the queries q. Tile A contains k, then the first layer's elementwise product overlap *
    // steps, by which the inner-loss gradients are multiplied. Tile B contains q.
    load(B, at.tokens(p.q));
    arrive();
    const float* read_steps = p.read_steps + at.index * T * T;
    float* const overlaps = p.overlap + at.index * T * T;
    Square overlap;
    product<kDim>(overlap, Rows{B}, Columns{A});
    __syncthreads();
    if constexpr (TWO) {
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * T + j);
        set_pair(A + i * kStep + j, (a + kBias) * step.x, (b + kBias) * step.y);
        a = b = 0;
      });
    }
    Outputs y;
    for (int s = 0; TWO && s < slices; ++s) {
      load_first(W, first.W + at.first(s));
      if constexpr (MOMENTUM) load_first(V, first.S + at.first(s));
      load_hidden(Y, first.g + at.hidden(s));
      arrive();
      Outputs x;
      read_product(x, B);
      product<T>(x, minus(Rows{A}), Rows{Y});
      x.each([&](int i, int j, float& a, float& b) {
        if constexpr (!MOMENTUM) a += first.b[at.first_bias(s) + j], b += first.b[at.first_bias(s) + j + 1];
        set_pair(p.x + at.hidden(s) + i * H + j, a, b);
        set_pair(X + i * kStep + j, act.value(a), act.value(b));
      });
      __syncthreads();
      load_last(W, last.W + at.last(s));
      if constexpr (MOMENTUM) load_last(V, last.S + at.last(s));
      load_hidden(Y, p.u + at.hidden(s));
      arrive();
      read_product(y, X);
      product<kDim>(overlap, Rows{X}, Columns{Y});
      __syncthreads();
    }
    if constexpr (!TWO) {
      load_last(W, last.W + at.last(0));
      if constexpr (MOMENTUM) load_last(V, last.S + at.last(0));
    }
    load(Y, at.tokens(last.g));
    overlap.each([&](int i, int j, float& a, float& b) {
      a += kBias, b += kBias;
      set_pair(overlaps + i * T + j, a, b);
      const float2 step = pair(read_steps + i * T + j);
      set_pair(X + i * kStep + j, a * step.x, b * step.y);
    });
    arrive();
    if constexpr (!TWO) read_product(y, B);
    product<T>(y, minus(Rows{X}), Rows{Y});
    y.each([&](int i, int j, float& a, float& b) {
      if constexpr (!MOMENTUM) a += last.b[at.last_bias() + j], b += last.b[at.last_bias() + j + 1];
      set_pair(at.tokens(p.out) + i * kDim + j, a, b);
    });
    __syncthreads();
  }
}

}  // namespace lazy::ops::cuda::learning

namespace lazy::ops::cuda {

void fast_weights_forward(const FastWeightsProblem& p, cudaStream_t stream) {
  if (learning::forward_in_cluster(p, stream)) return;
  learning::each_layer(p, [&](int64_t numbers, const FastWeightsLayer& layer) {
    learning::copy_to_place(layer.W, layer.W_start, numbers, stream);
    learning::copy_to_place(layer.S, layer.S_start, numbers, stream);
  });
  learning::with_shape(p, [&](auto T, auto two, auto momentum) {
    learning::launch(learning::forward<T(), two(), momentum()>, learning::kThreads, learning::kBytes<T()>, p, stream);
  });
}

int64_t fast_weights_kept_bytes(const FastWeightsProblem& p) { return learning::kept_by_cluster(p); }

bool serves_fast_weights(int64_t T, int64_t H, bool momentum) {
  if (T != (momentum ? 64 : 16) || H % learning::kDim != 0 || (H == 0 && !momentum)) return false;
  return learning::backward_memory(momentum) <= most_shared_memory("fast_weights");
}

}  // namespace lazy::ops::cuda
