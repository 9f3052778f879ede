// The forward pass of fast weights of two layers without momentum whose weights fit shared memory. They stay there from
// chunk to chunk; what the backward pass needs of each chunk is written out, nothing is read back.
#include "ops/cuda/fast_weights.cuh"

namespace lazy::ops::cuda::learning {

namespace {

constexpr int kT = 16, kWarps = 16, kThreads = 32 * kWarps;
constexpr int kHidden = 256;

// From row to row: the lanes of a fragment read different banks where a matrix is a left factor (4 more than a multiple
// of 32) or a right one (8 more).
constexpr int kFirst = kHidden + 8, kLast = kDim + 8, kInput = kHidden + 4, kGradient = kHidden + 8, kSquare = kT + 4;
constexpr int kParts = 4;  // of the last layer's overlap

// In the order of the kernel's pointers.
constexpr int kFloats = kDim * kFirst + kHidden * kLast + 2 * kT * kInput + kT * kGradient + 7 * kTokens<kT> +
                        kT * kSquare + kParts * kT * kT + kHidden + kDim + kT;
constexpr int kBytes = kFloats * static_cast<int>(sizeof(float));

}  // namespace

__global__ void __launch_bounds__(kThreads, 1) forward_shared(const __grid_constant__ FastWeightsProblem p) {
  extern __shared__ __align__(128) float memory[];
  float *const W_first = memory, *const W_last = W_first + kDim * kFirst;
  float *const U = W_last + kHidden * kLast, *const X = U + kT * kInput;  // the last layer's inputs at k and q
  float* const G = X + kT * kInput;                                       // the gradient by the first one's output
  float *const keys = G + kT * kGradient, *const queries = keys + 2 * kTokens<kT>;
  float *const B = queries + 2 * kTokens<kT>, *const Z = B + kTokens<kT>;  // by the last output; halves of an output
  float *const P = Z + 2 * kTokens<kT>, *const O = P + kT * kSquare;       // the steps of a layer; parts of an overlap
  float *const b_first = O + kParts * kT * kT, *const b_last = b_first + kHidden, *const steps = b_last + kDim;
  using Hidden = Share<kWarps, kT, kHidden>;
  using Half = Share<kWarps, kT, kDim, 2>;
  using Overlap = Share<kWarps, kT, kT, kParts>;
  const int64_t n = blockIdx.x;
  const FastWeightsLayer &first = p.first, &last = p.last;
  const Gelu act{p.tanh};
  const InnerLoss loss(p, n);
  const auto load = [&](int64_t index, int tile) {
    fetch<kT, kThreads>(keys + tile * kTokens<kT>, p.k + index * kT * kDim, kDim);
    fetch<kT, kThreads>(queries + tile * kTokens<kT>, p.q + index * kT * kDim, kDim);
  };
  // The product of hidden inputs and the last layer, in two halves.
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

  fetch<kDim, kThreads, kHidden, kFirst>(W_first, first.W + n * kDim * kHidden, kHidden);
  fetch<kHidden, kThreads, kDim, kLast>(W_last, last.W + n * kHidden * kDim, kDim);
  load(n, 0);
  if (threadIdx.x < kHidden) b_first[threadIdx.x] = first.b[n * kHidden + threadIdx.x];
  if (threadIdx.x < kDim) b_last[threadIdx.x] = last.b[n * kDim + threadIdx.x];

  for (int64_t chunk = 0; chunk < p.C; ++chunk) {
    const Place at{chunk * p.N + n, kHidden, kT};
    const bool ends = chunk + 1 == p.C;
    const int tile = static_cast<int>(chunk % 2);
    const float *const K = keys + tile * kTokens<kT>, *const Q = queries + tile * kTokens<kT>;
    const float* const read_steps = p.read_steps + at.index * kT * kT;
    const int64_t row_place = at.index * kT * kDim + warp() * kDim + 2 * lane();  // a warp has a row
    const float2 target = pair(p.target + row_place);
    if (threadIdx.x < kT) steps[threadIdx.x] = p.steps[at.index * kT + threadIdx.x];
    arrive();
    if (!ends) load(at.index + p.N, 1 - tile);

    // The first layer at k and, but for the chunk's own steps, at q.
    Hidden z, x;
    product<kDim>(z, Rows{K}, RowsOf<kFirst>{W_first});
    z.each([&](int i, int j, float& a, float& b) {
      a += b_first[j], b += b_first[j + 1];
      const int64_t to = at.hidden(0) + i * kHidden + j;
      const float u = act.value(a), v = act.value(b);
      if (p.for_backward) set_pair(first.z + to, a, b), set_pair(p.u + to, u, v);
      set_pair(U + i * kInput + j, u, v);
    });
    product<kDim>(x, Rows{Q}, RowsOf<kFirst>{W_first});
    {
      Share<kWarps, kT, kT> overlap;
      product<kDim>(overlap, Rows{Q}, Columns{K});
      overlap.each([&](int i, int j, float& a, float& b) {
        const float2 step = pair(read_steps + i * kT + j);
        set_pair(P + i * kSquare + j, (a + 1) * step.x, (b + 1) * step.y);
      });
    }
    __syncthreads();

    // The inner gradients.
    last_product(U);
    __syncthreads();
    {
      float2 y = last_output(warp(), 2 * lane());
      const float2 g = loss.gradient(y, target);
      if (p.for_backward) set_pair(last.z + row_place, y.x, y.y), set_pair(last.g + row_place, g.x, g.y);
      set_pair(B + warp() * kStep + 2 * lane(), g.x, g.y);
    }
    __syncthreads();
    Hidden t;
    product<kDim>(t, Rows{B}, ColumnsOf<kLast>{W_last});
    if (p.for_backward)
      t.each([&](int i, int j, float& a, float& b) { set_pair(p.t + at.hidden(0) + i * kHidden + j, a, b); });
#pragma unroll
    for (int m = 0; m < Hidden::kTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) t.c[m][e] *= act.slope(z.c[m][e]);
    }
    t.each([&](int i, int j, float& a, float& b) {
      if (p.for_backward) set_pair(first.g + at.hidden(0) + i * kHidden + j, a, b);
      set_pair(G + i * kGradient + j, a, b);
    });
    __syncthreads();

    // The outputs at q.
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

    // The state after the chunk. Where it is not wanted there is none.
    const Place after{ends ? n : at.index + p.N, kHidden, kT};
    float *const to_first = ends ? first.W_end : first.W, *const to_last = ends ? last.W_end : last.W;
    const bool writes = to_last && (p.for_backward || ends);
    if (threadIdx.x < kT * kT) {
      float overlap = 1;
#pragma unroll
      for (int part = 0; part < kParts; ++part) overlap += O[part * kT * kT + threadIdx.x];
      if (p.for_backward) p.overlap[at.index * kT * kT + threadIdx.x] = overlap;
      P[threadIdx.x / kT * kSquare + threadIdx.x % kT] = overlap * read_steps[threadIdx.x];
    }
    if (to_last) {
      Share<kWarps, kHidden, kDim> by;
      product<kT>(by, ScaledColumnsOf<kInput>{U, steps}, Rows{B});
      by.each([&](int i, int j, float& a, float& b) {
        float* const w = W_last + i * kLast + j;
        set_pair(w, w[0] - a, w[1] - b);
      });
    }
    if (to_last) {
      Share<kWarps, kDim, kHidden> by;
      product<kT>(by, ScaledColumns{K, steps}, RowsOf<kGradient>{G});
      by.each([&](int i, int j, float& a, float& b) {
        float* const w = W_first + i * kFirst + j;
        set_pair(w, w[0] - a, w[1] - b);
      });
      if (threadIdx.x < kHidden) b_first[threadIdx.x] -= stepped_sum<kT, kGradient>(steps, G);
    }
    const float by_bias = to_last && threadIdx.x < kDim ? stepped_sum<kT, kStep>(steps, B) : 0;
    __syncthreads();
    {
      Share<kWarps, kT, kDim> y;
      product<kT>(y, minus(RowsOf<kSquare>{P}), Rows{B});
      y.each([&](int i, int j, float& a, float& b) {
        const float2 out = last_output(i, j);
        set_pair(at.tokens(p.out) + i * kDim + j, out.x + a, out.y + b);
      });
    }
    if (writes) {
      store<kDim, kThreads, kHidden, kFirst>(to_first + after.first(0), W_first);
      store<kHidden, kThreads, kDim, kLast>(to_last + after.last(0), W_last);
    }
    __syncthreads();
    if (writes && threadIdx.x < kHidden) {
      (ends ? first.b_end : first.b)[after.first_bias(0) + threadIdx.x] = b_first[threadIdx.x];
    }
    if (to_last && threadIdx.x < kDim) {
      b_last[threadIdx.x] -= by_bias;
      if (writes) (ends ? last.b_end : last.b)[after.last_bias() + threadIdx.x] = b_last[threadIdx.x];
    }
  }
}

bool forward_in_shared_memory(const FastWeightsProblem& p, cudaStream_t stream) {
  if (p.momentum || p.T != kT || p.H != kHidden || kBytes > most_shared_memory("fast_weights")) return false;
  launch(forward_shared, kThreads, kBytes, p, stream);
  return true;
}

}  // namespace lazy::ops::cuda::learning
