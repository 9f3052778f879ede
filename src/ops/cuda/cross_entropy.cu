// Cross-entropy kernels with one block per row of logits. The first pass computes the maximum and the sum of
// exponentials. The second pass overwrites the row with its gradient; most of its reads hit the cache. If the gradient
// is required and the row has at most 32768 logits, the row is read only once: one part of it stays in registers, the
// rest in shared memory.
#include "ops/cuda/launch.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kHeld = 4;  // number of float4 loads that a thread issues before it uses the first result
constexpr int kStep = 4 * kHeld * kThreads;

// kept_rows_kernel keeps a whole row of logits on chip. Its blocks have kKeepingThreads threads. Each thread keeps
// kInRegisters float4 vectors in registers and kInShared float4 vectors in shared memory; it loads the vectors for
// shared memory in two groups.
constexpr int kKeepingThreads = 512, kInRegisters = 6, kInShared = 10;
constexpr int kMaxKept = 4 * (kInRegisters + kInShared) * kKeepingThreads;
constexpr int kKeptBytes = 16 * kInShared * kKeepingThreads;

// `largest` is the running maximum of the logits x, and `sum` is the sum of exp(x - largest) over these logits.
struct Sum {
  float largest = -INFINITY, sum = 0;
};

__device__ Sum merged(Sum a, Sum b) {
  const float largest = fmaxf(a.largest, b.largest), base = largest == -INFINITY ? 0 : largest;
  return {largest, a.sum * expf(a.largest - base) + b.sum * expf(b.largest - base)};
}

__device__ Sum merged_by_warp(Sum mine) {
  for (int step = 16; step > 0; step /= 2) {
    const Sum other = {__shfl_xor_sync(0xffffffffu, mine.largest, step), __shfl_xor_sync(0xffffffffu, mine.sum, step)};
    mine = merged(mine, other);
  }
  return mine;
}

// Merges the sums of all threads of the block and returns the result to every thread.
__device__ Sum merged_by_block(Sum mine) {
  __shared__ Sum room[32];
  mine = merged_by_warp(mine);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  return merged_by_warp(threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : Sum{});
}

__device__ float largest_of(float largest, float4 x) { return fmaxf(largest, fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w))); }

// Loads four logits starting at `index`; elements past the end of the row are -inf.
__device__ float4 logits_at(const float* row, int index, int vocabulary) {
  if (index + 4 <= vocabulary) return *reinterpret_cast<const float4*>(row + index);
  return make_float4(index < vocabulary ? row[index] : -INFINITY, index + 1 < vocabulary ? row[index + 1] : -INFINITY,
                     index + 2 < vocabulary ? row[index + 2] : -INFINITY, -INFINITY);
}

// Computes the maximum and the sum of exponentials of the row, and returns them to every thread of the block. A NaN in
// the row makes the sum NaN.
__device__ Sum sum_of(const float* row, int vocabulary) {
  Sum mine;
  for (int first = 4 * threadIdx.x; first < vocabulary; first += kStep) {
    float4 x[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) x[k] = logits_at(row, first + 4 * k * kThreads, vocabulary);
    float largest = mine.largest;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) largest = largest_of(largest, x[k]);
    const float base = largest == -INFINITY ? 0 : largest;
    mine.sum *= expf(mine.largest - base);
    mine.largest = largest;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      mine.sum += (expf(x[k].x - base) + expf(x[k].y - base)) + (expf(x[k].z - base) + expf(x[k].w - base));
    }
  }
  return merged_by_block(mine);
}

template <typename T>
__device__ void store_four(T* to, float4 x) {
  if constexpr (std::is_same_v<T, float>) {
    *reinterpret_cast<float4*>(to) = x;
  } else {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
  }
}

// Stores four elements `d` of the gradient of a row, starting at `index`. If one of them is the element of the label,
// subtracts `whole` (gradient_scale) from it. The last vector of a row may also write up to three elements of the
// padding between rows.
template <typename T>
__device__ void store_gradient(T* to, int index, float4 d, int label, float whole) {
  if (index <= label && label < index + 4) {
    d.x -= label == index ? whole : 0;
    d.y -= label == index + 1 ? whole : 0;
    d.z -= label == index + 2 ? whole : 0;
    d.w -= label == index + 3 ? whole : 0;
  }
  store_four<T>(to + index, d);
}

// Writes the gradient scale * exp(logit - largest), minus `whole` (gradient_scale) at the element of the label. A
// 16-bit gradient overwrites the first half of the row's fp32 logits. This is safe because each loop step writes its
// gradients only after all threads have read the logits of this step, and these gradients end before the logits of the
// next step.
template <typename T>
__device__ void write_gradient(float* row, int vocabulary, int label, float largest, float scale, float whole) {
  T* out = reinterpret_cast<T*>(row);
  for (int begin = 0; begin < vocabulary; begin += kStep) {
    const int first = begin + 4 * threadIdx.x;
    float4 x[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) x[k] = logits_at(row, first + 4 * k * kThreads, vocabulary);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int index = first + 4 * k * kThreads;
      if (index >= vocabulary) continue;
      store_gradient(out, index,
                     make_float4(scale * expf(x[k].x - largest), scale * expf(x[k].y - largest),
                                 scale * expf(x[k].z - largest), scale * expf(x[k].w - largest)),
                     label, whole);
    }
  }
}

// Writes the outputs of a row whose label is ignore_index: log probability 0, `correct` false, and a zero gradient.
template <typename T, bool GRADIENT>
__device__ void leave_out(const CrossEntropy& a, float* row, int64_t token) {
  for (int n = 4 * threadIdx.x; GRADIENT && n < a.vocabulary; n += 4 * blockDim.x) {
    store_four<T>(reinterpret_cast<T*>(row) + n, make_float4(0, 0, 0, 0));
  }
  if (threadIdx.x == 0) {
    a.log_prob[token] = 0;
    a.correct[token] = false;
  }
}

__device__ void report(const CrossEntropy& a, int64_t token, float target, Sum all) {
  if (threadIdx.x != 0) return;
  a.log_prob[token] = target - all.largest - logf(all.sum);
  a.correct[token] = target == all.largest;
}

template <typename T, bool GRADIENT>
__global__ void __launch_bounds__(kThreads) rows_kernel(const CrossEntropy a) {
  const int64_t token = blockIdx.x, label = a.label[token];
  const int vocabulary = static_cast<int>(a.vocabulary);
  float* row = a.logits + token * a.stride;
  if (label == a.ignore_index) return leave_out<T, GRADIENT>(a, row, token);
  const bool valid = label >= 0 && label < vocabulary;
  const float target = valid ? row[label] : NAN;
  // sum_of contains a block barrier, so all threads have read the target logit before the gradient overwrites it.
  const Sum all = sum_of(row, vocabulary);
  report(a, token, target, all);
  if constexpr (GRADIENT) {
    const float scale = valid ? a.gradient_scale / all.sum : NAN;
    write_gradient<T>(row, vocabulary, static_cast<int>(label), all.largest, scale, a.gradient_scale);
  }
}

// Variant of rows_kernel for rows that fit in registers and shared memory and whose gradient is required. Each logit x
// is replaced by exp(x - base), where `base` is the largest logit that the thread has loaded. The factor `scale` of the
// gradient later corrects for the difference between `base` and the maximum of the row.
template <typename T>
__global__ void __launch_bounds__(kKeepingThreads, 2) kept_rows_kernel(const CrossEntropy a) {
  extern __shared__ float4 shared[];
  const int64_t token = blockIdx.x, label = a.label[token];
  const int vocabulary = static_cast<int>(a.vocabulary);
  float* row = a.logits + token * a.stride;
  if (label == a.ignore_index) return leave_out<T, true>(a, row, token);
  const bool valid = label >= 0 && label < vocabulary;
  const float target = valid ? row[label] : NAN;
  const auto index = [](int k) { return 4 * (k * kKeepingThreads + static_cast<int>(threadIdx.x)); };
  Sum mine;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float4 y[kInShared / 2];
#pragma unroll
    for (int k = 0; k < kInShared / 2; ++k) y[k] = logits_at(row, index(part * kInShared / 2 + k), vocabulary);
#pragma unroll
    for (int k = 0; k < kInShared / 2; ++k) {
      mine.largest = largest_of(mine.largest, y[k]);
      shared[index(part * kInShared / 2 + k) / 4] = y[k];
    }
  }
  float4 x[kInRegisters];
#pragma unroll
  for (int k = 0; k < kInRegisters; ++k) x[k] = logits_at(row, index(kInShared + k), vocabulary);
#pragma unroll
  for (int k = 0; k < kInRegisters; ++k) mine.largest = largest_of(mine.largest, x[k]);
  const float base = mine.largest == -INFINITY ? 0 : mine.largest;
  const auto exponentials = [&](float4 y) {
    y = make_float4(expf(y.x - base), expf(y.y - base), expf(y.z - base), expf(y.w - base));
    mine.sum += (y.x + y.y) + (y.z + y.w);
    return y;
  };
#pragma unroll
  for (int k = 0; k < kInRegisters; ++k) x[k] = exponentials(x[k]);
#pragma unroll 2
  for (int k = 0; k < kInShared; ++k) shared[index(k) / 4] = exponentials(shared[index(k) / 4]);
  // merged_by_block contains a block barrier, so all threads have read the row before the gradient overwrites it.
  const Sum all = merged_by_block(mine);
  report(a, token, target, all);
  const float scale = valid ? a.gradient_scale / all.sum * expf(base - all.largest) : NAN;
  const auto write = [&](int k, float4 y) {
    if (index(k) >= vocabulary) return;
    store_gradient(reinterpret_cast<T*>(row), index(k), make_float4(scale * y.x, scale * y.y, scale * y.z, scale * y.w),
                   static_cast<int>(label), a.gradient_scale);
  };
#pragma unroll
  for (int k = 0; k < kInRegisters; ++k) write(kInShared + k, x[k]);
#pragma unroll 2
  for (int k = 0; k < kInShared; ++k) write(k, shared[index(k) / 4]);
}

__device__ double added_by_warp(double mine) {
  for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, step);
  return mine;
}

__device__ double added_by_block(double mine) {
  __shared__ double room[32];
  mine = added_by_warp(mine);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  return added_by_warp(room[threadIdx.x % 32]);
}

__global__ void __launch_bounds__(kThreads) count_kernel(const Labels a) {
  double counted = 0;
  bool valid = true;
#pragma unroll 8
  for (int64_t t = threadIdx.x; t < a.tokens; t += kThreads) {
    const int64_t label = a.label[t];
    const bool ignored = label == a.ignore_index;
    counted += ignored ? 0 : 1;
    valid = valid && (ignored || (label >= 0 && label < a.vocabulary));
  }
  valid = __syncthreads_and(valid);
  counted = added_by_block(counted);
  if (threadIdx.x != 0) return;
  *a.counted = counted;
  *a.scale = 1 / static_cast<float>(fmax(counted, 1.0)) / a.gradient_scale;
  *a.valid = valid;
}

__global__ void __launch_bounds__(kThreads)
    mean_kernel(const float* log_prob, int64_t tokens, const double* counted, float* loss) {
  double sum = 0;
#pragma unroll 8
  for (int64_t t = threadIdx.x; t < tokens; t += kThreads) sum += log_prob[t];
  sum = added_by_block(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(-sum / *counted);
}

}  // namespace

void count_labels(const Labels& a, cudaStream_t stream) {
  count_kernel<<<1, kThreads, 0, stream>>>(a);
  check_launch("linear_cross_entropy");
}

void cross_entropy(const CrossEntropy& a, cudaStream_t stream) {
  if (a.tokens == 0) return;
  const auto blocks = static_cast<unsigned>(a.tokens);
  if (!a.gradient) {
    rows_kernel<float, false><<<blocks, kThreads, 0, stream>>>(a);
  } else {
    with_type(a.type, [&](auto zero) {
      using T = decltype(zero);
      if (a.vocabulary > kMaxKept) return rows_kernel<T, true><<<blocks, kThreads, 0, stream>>>(a);
      check(cudaFuncSetAttribute(kept_rows_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kKeptBytes),
            "linear_cross_entropy");
      kept_rows_kernel<T><<<blocks, kKeepingThreads, kKeptBytes, stream>>>(a);
    });
  }
  check_launch("linear_cross_entropy");
}

void mean_loss(const float* log_prob, int64_t tokens, const double* counted, float* loss, cudaStream_t stream) {
  mean_kernel<<<1, kThreads, 0, stream>>>(log_prob, tokens, counted, loss);
  check_launch("linear_cross_entropy");
}

}  // namespace lazy::ops::cuda
