// The short convolution with SiLU, and its gradients. A thread processes a vector of channels and iterates over a run
// of consecutive tokens, with the last inputs in registers. The variants with 4 and 8 taps are also used for fewer
// taps; the first weights are then zero.
#include "ops/cuda/short_convolution.h"

#include <algorithm>
#include <climits>

#include "ops/cuda/launch.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr int kAcross = 32, kRuns = 4;  // a block has kAcross vectors of channels times kRuns runs of tokens
constexpr int kRun = 32;                // number of tokens per run

__host__ __device__ constexpr int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Tracks the document of the current token while a thread iterates over its tokens.
struct Walk {
  const int32_t* starts;
  int documents, document = 0;
  int64_t begin = 0, next = LLONG_MAX;  // start of the document of the current token; start of the next document

  __device__ Walk(const ShortConvolution& a, int64_t first) : starts(a.cu_seqlens), documents(a.documents) {
    if (!starts) {
      begin = LLONG_MIN / 2;  // the document begins before this call, and `past` contains its last inputs
      return;
    }
    int low = 0, high = documents;  // binary search for the last document that starts at or before `first`
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (starts[middle] <= first) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    document = low;
    begin = starts[document];
    if (document < documents) next = starts[document + 1];
  }
  // Advances to token t, which must be the token after the previous one. Returns true if a document starts there.
  __device__ bool enter(int64_t t) {
    if (t < next) return false;
    begin = next;
    while (document < documents && starts[document + 1] <= t) ++document;
    next = document < documents ? starts[document + 1] : LLONG_MAX;
    return true;
  }
};

template <typename T, int N, int TAPS>
struct Channels {
  const ShortConvolution& a;
  int64_t b, channel;
  float weight[TAPS][N], bias[N], window[TAPS][N] = {};  // window: the inputs that the taps read

  __device__ Channels(const ShortConvolution& a, int64_t b, int64_t channel, int64_t first, const Walk& walk)
      : a(a), b(b), channel(channel) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j < TAPS; ++j) {
        const int tap = j - (TAPS - a.taps);
        weight[j][i] = tap >= 0 ? a.weight[(channel + i) * a.taps + tap] : 0;
      }
      bias[i] = a.bias ? a.bias[channel + i] : 0;
    }
#pragma unroll
    for (int j = 1; j < TAPS; ++j) {  // load the inputs before the first token
      const int64_t t = first - TAPS + j;
      if (t < walk.begin) continue;
      if (t >= 0) {
        expand<T, N>(load<T, N>(static_cast<const T*>(a.x) + b * a.batch_stride + t * a.token_stride + channel),
                     window[j]);
      } else if (a.past && t + a.taps - 1 >= 0) {
        expand<T, N>(
            load<T, N>(static_cast<const T*>(a.past) + (b * (a.taps - 1) + t + a.taps - 1) * a.channels + channel),
            window[j]);
      }
    }
  }
  __device__ Bits<T, N> input(int64_t t) const {
    return load_once<T, N>(static_cast<const T*>(a.x) + b * a.batch_stride + t * a.token_stride + channel);
  }
  // Appends the input of the next token to the window, and computes the sums before SiLU.
  __device__ void step(Bits<T, N> x, bool begins, float (&sum)[N]) {
#pragma unroll
    for (int j = 0; j + 1 < TAPS; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) window[j][i] = begins ? 0 : window[j + 1][i];
    }
    expand<T, N>(x, window[TAPS - 1]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum[i] = bias[i];
#pragma unroll
      for (int j = 0; j < TAPS; ++j) sum[i] = fmaf(weight[j][i], window[j][i], sum[i]);
    }
  }
};

template <typename T, int N, int TAPS>
__global__ void __launch_bounds__(kAcross* kRuns) convolve(const ShortConvolution a) {
  constexpr int kHeld = 4;  // number of tokens that are loaded before the first of them is processed
  const int64_t channel = (int64_t{blockIdx.x} * kAcross + threadIdx.x) * N;
  const int64_t first = ((a.first_block + blockIdx.y) * kRuns + threadIdx.y) * kRun, end = min(first + kRun, a.length);
  const int64_t b = a.first_sequence + blockIdx.z;
  if (channel >= a.channels || first >= a.length) return;
  Walk walk(a, first);
  Channels<T, N, TAPS> c(a, b, channel, first, walk);
  T* y = static_cast<T*>(a.y) + b * a.length * a.channels + channel;
  for (int64_t top = first; top < end; top += kHeld) {
    Bits<T, N> x[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) x[k] = c.input(min(top + k, a.length - 1));
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t t = top + k;
      float sum[N];
      c.step(x[k], walk.enter(t), sum);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] *= sigmoid<T>(sum[i]);
      if (t < end) store<T, N>(y + t * a.channels, round_all<T, N>(sum));
    }
  }
}

// The gradient of an input is complete only after the last token whose taps read this input. A run therefore continues
// for TAPS - 1 tokens after its end. d_weight includes only the tokens of the run itself.
template <typename T, int N, int TAPS>
__global__ void __launch_bounds__(kAcross* kRuns) gradients(const ShortConvolution a) {
  __shared__ float shared[kRuns][kAcross * N];
  const int64_t channel = (int64_t{blockIdx.x} * kAcross + threadIdx.x) * N;
  const int64_t first = ((a.first_block + blockIdx.y) * kRuns + threadIdx.y) * kRun, end = min(first + kRun, a.length);
  const int64_t b = a.first_sequence + blockIdx.z;
  float d_weight[TAPS + 1][N] = {};  // rows 0 to TAPS - 1: gradients of the taps; last row: gradient of the bias
  if (channel < a.channels && first < a.length) {
    Walk walk(a, first);
    Channels<T, N, TAPS> c(a, b, channel, first, walk);
    const T* d_y = static_cast<const T*>(a.d_y) + b * a.length * a.channels + channel;
    T* d_x = static_cast<T*>(a.d_x) + b * a.length * a.channels + channel;
    float d_window[TAPS][N] = {};  // gradients of the inputs in the window
    constexpr int kHeld = 4;       // number of tokens that are loaded before the first of them is processed
    Bits<T, N> next_x[kHeld], next_dy[kHeld];
    const auto fetch = [&](int64_t top) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int64_t t = min(top + k, a.length - 1);
        next_x[k] = c.input(t);
        next_dy[k] = load_once<T, N>(d_y + t * a.channels);
      }
    };
    fetch(first);
    for (int64_t top = first; top < end + TAPS - 1; top += kHeld) {
      Bits<T, N> x[kHeld], dy[kHeld];
#pragma unroll
      for (int k = 0; k < kHeld; ++k) x[k] = next_x[k], dy[k] = next_dy[k];
      fetch(top + kHeld);
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int64_t t = top + k;
        float sum[N], d[N];
        c.step(x[k], walk.enter(t), sum);
        expand<T, N>(dy[k], d);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float s = sigmoid<T>(sum[i]);
          d[i] = t < a.length ? d[i] * s * fmaf(sum[i], 1 - s, 1.0f) : 0;
        }
#pragma unroll
        for (int j = 0; j < TAPS; ++j) {
          const bool sees = t - (TAPS - 1 - j) >= walk.begin;
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const float before = j + 1 < TAPS ? d_window[j + 1 < TAPS ? j + 1 : j][i] : 0;
            d_window[j][i] = sees ? fmaf(c.weight[j][i], d[i], before) : before;
          }
        }
        const int64_t done = t - (TAPS - 1);
        if (done >= first && done < end) store<T, N>(d_x + done * a.channels, round_all<T, N>(d_window[0]));
        if (t < end) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int j = 0; j < TAPS; ++j) d_weight[j][i] = fmaf(c.window[j][i], d[i], d_weight[j][i]);
            d_weight[TAPS][i] += d[i];
          }
        }
      }
    }
  }
  float* part =
      a.parts + (b * blocks_of(a.length, kRuns * kRun) + a.first_block + blockIdx.y) * (a.taps + 1) * a.channels;
#pragma unroll
  for (int j = 0; j <= TAPS; ++j) {  // add the results of the block's runs in a fixed order
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) shared[threadIdx.y][threadIdx.x * N + i] = d_weight[j][i];
    __syncthreads();
    const int tap = j - (TAPS - a.taps);
    if (tap < 0) continue;
    for (int n = threadIdx.y * kAcross + threadIdx.x; n < kAcross * N; n += kAcross * kRuns) {
      const int64_t to = int64_t{blockIdx.x} * kAcross * N + n;
      if (to >= a.channels) continue;
      float sum = 0;
#pragma unroll
      for (int r = 0; r < kRuns; ++r) sum += shared[r][n];
      part[tap * a.channels + to] = sum;
    }
  }
}

template <typename T, int N, int TAPS, bool BACKWARD>
void launch(const ShortConvolution& all, cudaStream_t stream) {
  const dim3 threads(kAcross, kRuns);
  in_parts(all.batch, [&](int64_t first_sequence, int64_t sequences) {
    in_parts(blocks_of(all.length, kRuns * kRun), [&](int64_t first_block, int64_t blocks) {
      ShortConvolution a = all;
      a.first_sequence = first_sequence;
      a.first_block = first_block;
      const dim3 grid(static_cast<unsigned>(blocks_of(a.channels, kAcross * N)), static_cast<unsigned>(blocks),
                      static_cast<unsigned>(sequences));
      if constexpr (BACKWARD) {
        gradients<T, N, TAPS><<<grid, threads, 0, stream>>>(a);
      } else {
        convolve<T, N, TAPS><<<grid, threads, 0, stream>>>(a);
      }
      check_launch(BACKWARD ? "short_convolution_backward" : "short_convolution");
    });
  });
}

template <bool BACKWARD>
void launch_any(const ShortConvolution& a, cudaStream_t stream) {
  if (a.batch * a.length * a.channels == 0) return;
  const bool wide = aligned(a.x) && aligned(a.past) && aligned(a.y) && aligned(a.d_y) && aligned(a.d_x);
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    // With 8 channels per thread, the gradients would need 200 registers per thread. The few warps that then fit would
    // not hide the memory latency.
    constexpr int N = BACKWARD ? std::min(kWide<T>, 4) : kWide<T>;
    const bool vectors = wide && a.channels % N == 0 && a.batch_stride % N == 0 && a.token_stride % N == 0;
    const auto with_taps = [&](auto taps) {
      vectors ? launch<T, N, taps(), BACKWARD>(a, stream) : launch<T, 1, taps(), BACKWARD>(a, stream);
    };
    a.taps <= 4 ? with_taps(std::integral_constant<int, 4>{}) : with_taps(std::integral_constant<int, 8>{});
  });
}

}  // namespace

void short_convolution(const ShortConvolution& a, cudaStream_t stream) { launch_any<false>(a, stream); }

int64_t short_convolution_parts(const ShortConvolution& a) { return a.batch * blocks_of(a.length, kRuns * kRun); }

void short_convolution_backward(const ShortConvolution& a, cudaStream_t stream) { launch_any<true>(a, stream); }

}  // namespace lazy::ops::cuda
