// Persistent kernel that computes all layers of a decode step of one sequence, with one block per multiprocessor. Such
// a step is bound by latency. For example, reading the weights of a model with 24 layers takes 0.17 ms at full memory
// bandwidth, but its layers consist of about 170 work items, and each of them depends on the previous one. Therefore
// blocks exchange only the data that they need (flagged_words.cuh), weights and keys are prefetched, and the critical
// path between two exchanges is short.
//
// Each layer has seven exchanges between blocks: x -> q, k, v -> softmax statistics of parts of the keys -> value sums
// of pieces of the keys -> attention outputs -> x -> SwiGLU outputs -> x. Each buffer of words is used once per layer.
// Overwriting a buffer in the next layer needs no barrier: before that, a block has received words in the other
// exchanges that could only be computed after all blocks had read the previous contents of the buffer.
#include <algorithm>
#include <climits>
#include <optional>

#include "lazy/decode_step_cuda.h"
#include "ops/cuda/fast_weights_ptx.cuh"
#include "ops/cuda/step_attention.cuh"
#include "ops/cuda/step_weights.cuh"

namespace lazy::ops::cuda {

namespace step {

template <int D>
constexpr int kSharedBytes = (static_cast<int>(sizeof(StepShared<D>)) + 127) / 128 * 128;

// Applies RoPE to q and k and writes q, k and v to the word buffer `heads`. In a unit (the group of matrix rows that a
// block multiplies), elements r < 8 are the first elements of RoPE pairs, and elements r + 8 are the second elements of
// the same pairs.
template <typename T, int D>
__device__ void put_head(const Worker<T, D>& w, uint32_t flag, bool there, int unit, int r, float y) {
  const PageTarget& pages = w.s.pages;
  const RopePair pair = pair_of(pages, unit * 8 + r % 8);
  y = rounded<T>(y);
  const float other = __shfl_xor_sync(~0u, y, 8);
  if (pair.turned) {
    const float2 by = w.shared.angles[pair.number];
    y = rounded<T>(r < 8 ? fmaf(-other, by.y, y * by.x) : fmaf(other, by.y, y * by.x));
  }
  Word* const to = w.s.heads + pair.head * (D / 2);
  if (pair.turned && !pages.interleaved) {
    w.put_pair(there, to + (r < 8 ? pair.first : pair.second) / 2, y, flag);
  } else {
    const float second = __shfl_xor_sync(~0u, y, 8);
    if (there && r < 8) put_word(to + pair.first / 2, flagged(kernels::cuda::pack<T>(y, second), flag));
  }
}

template <typename T, int D>
__global__ void __launch_bounds__(kLayerThreads, 1) run_layers(const __grid_constant__ Layers s) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  char* const own = own_memory(memory);
  StepShared<D>& shared = *reinterpret_cast<StepShared<D>*>(own);
  char* const ring = own + kSharedBytes<D>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int n = 0; n < s.slots; ++n) {
      kernels::cuda::barrier_init(&shared.full[n], 1);
      kernels::cuda::barrier_init(&shared.empty[n], kWorkers);
    }
    kernels::cuda::fence_barriers();
    shared.length = s.attention.lengths[0];
    shared.slot = s.pages.slots[0];
  }
  for (int pair = threadIdx.x; pair < s.pages.table.pairs; pair += kLayerThreads) {
    float cos[1], sin[1];
    angles<1, true>(s.pages.table, s.pages.positions[0], pair, cos, sin);
    shared.angles[pair] = {cos[0], sin[0]};
  }
  __syncthreads();
  if (warp == kWorkers) return bring_weights<T, D>(s, shared, ring);

  Worker<T, D> w{s, shared, ring, ring + s.slots * kSlotBytes + warp * s.worker_bytes, warp, lane, lane / 4, lane % 4};
  Attention<T, D> attention(w);
  const uint32_t base = *static_cast<volatile uint32_t*>(s.counter) + 1;
  for (int n = blockIdx.x * kWorkerThreads + threadIdx.x; n < s.hidden / 2; n += gridDim.x * kWorkerThreads) {
    put_word(s.stream + n, flagged(__ldcg(static_cast<const uint32_t*>(s.x) + n), base));
  }
  attention.begin_part(s.layers[0], warp);
#pragma unroll 1
  for (int layer = 0; layer < s.count; ++layer) {
    const FusedDecodeLayer& l = s.layers[layer];
    const uint32_t flag = base + layer + 1;
    w.template multiply<MatrixKind::heads>(
        matrix_of(s, l, MatrixKind::heads), l.norm, s.stream, flag - 1, nullptr,
        [&](bool there, int unit, int r, float y, Word) { put_head<T, D>(w, flag, there, unit, r, y); });
    attention.set_layer(l);
    attention.score(l, flag);
    worker_barrier();  // two warps compute the scores of a piece of keys, one part each; wait for both
    attention.sum_values(l, flag);
    if (layer + 1 < s.count) attention.begin_part(s.layers[layer + 1], warp);
    attention.add_pieces(flag);
    w.template multiply<MatrixKind::output>(matrix_of(s, l, MatrixKind::output), nullptr, s.attended, flag, s.stream,
                                            [&](bool there, int unit, int r, float y, Word before) {
                                              const int at = there ? unit * 4 + r / 2 : 0;
                                              y = w.add(before, s.stream + at, flag - 1, r, y);
                                              w.put_pair(there, s.middle + at, y, flag);
                                            });
    w.template multiply<MatrixKind::gate_up>(matrix_of(s, l, MatrixKind::gate_up), l.mlp_norm, s.middle, flag, nullptr,
                                             [&](bool there, int unit, int r, float y, Word) {
                                               const float up = __shfl_xor_sync(~0u, y, 8);
                                               w.put_pair(there && r < 8, s.activated + unit * 4 + r % 8 / 2,
                                                          swiglu<T>(y, up), flag);
                                             });
    w.template multiply<MatrixKind::down>(matrix_of(s, l, MatrixKind::down), nullptr, s.activated, flag, s.middle,
                                          [&](bool there, int unit, int r, float y, Word before) {
                                            const int at = there ? unit * 4 + r / 2 : 0;
                                            y = w.add(before, s.middle + at, flag, r, y);
                                            const uint32_t both = w.put_pair(there, s.stream + at, y, flag);
                                            if (there && r % 2 == 0 && layer == s.count - 1) {
                                              static_cast<uint32_t*>(s.y)[at] = both;
                                            }
                                          });
  }
  worker_barrier();
  if (threadIdx.x != 0) return;
  __threadfence();
  // Only the last block that finishes enters this branch. All blocks have then read counter[0].
  if (atomicAdd(s.counter + 1, 1U) == gridDim.x - 1) {
    s.counter[1] = 0;
    s.counter[0] = base + s.count;
  }
#endif
}

// The kernel for a head size, and its limits on the current device.
struct Kernel {
  void (*run)(Layers) = nullptr;
  // The three members are the size of StepShared in bytes, the maximum shared memory per block in bytes, and the number
  // of multiprocessors.
  int shared = 0, most_shared = 0, multiprocessors = 0;
};

template <int D>
Kernel prepare() {
  Kernel k{run_layers<__nv_bfloat16, D>, kSharedBytes<D>};
  k.most_shared = decoding::gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  k.multiprocessors = decoding::gpu_attribute(cudaDevAttrMultiProcessorCount);
  kernels::cuda::check(cudaFuncSetAttribute(k.run, cudaFuncAttributeMaxDynamicSharedMemorySize, k.most_shared),
                       "to prepare fused_decode_layers");
  return k;
}
Kernel kernel_of(int64_t head_dim) { return head_dim == 64 ? prepare<64>() : prepare<128>(); }

// Shared memory in bytes of each worker warp (a warp that computes), and number of slots of the ring buffer for weights
// that fit in the remaining shared memory of the block.
struct Room {
  int worker_bytes, slots;
};
Room room_of(const FusedDecodeLayers& p, const Kernel& kernel) {
  const int64_t x = std::max({p.hidden, p.problem.heads * p.problem.head_dim, p.inner}) / kParts * 2 * 2;
  const bool small = p.problem.head_dim == 64;
  const int64_t worker =
      ((small ? Worker<__nv_bfloat16, 64>::kXAt : Worker<__nv_bfloat16, 128>::kXAt) + x + 127) / 128 * 128;
  const int64_t left = kernel.most_shared - kernel.shared - kWorkers * worker;
  return {static_cast<int>(std::min<int64_t>(worker, INT_MAX)),
          static_cast<int>(std::clamp<int64_t>(left / kSlotBytes, 0, kMaxSlots))};
}

// The kernel arguments except for the layers, and the number of 64-bit words in the workspace. If p.words is null, only
// the number of words is valid.
struct Plan {
  Layers arguments;
  int64_t words = 0;
};
std::optional<Plan> plan(const FusedDecodeLayers& p) {
  const kernels::Problem& o = p.problem;
  const int64_t heads = o.heads * o.head_dim;
  const kernels::CacheSize cache{p.attention.table_width * p.attention.page_size, p.pages};
  kernels::Decode<float> a = p.attention;
  a.q = {nullptr, heads, heads, o.head_dim, 1};
  a.out = {nullptr, heads, heads, o.head_dim, 1};
  a.k = a.v = {nullptr, p.attention.page_size * heads, heads, o.head_dim, 1};
  Plan r{};
  Word* const base = static_cast<Word*>(p.words);
  const auto take = [&](int64_t count) {
    r.words = (r.words + 15) / 16 * 16;
    Word* const piece = base ? base + r.words : nullptr;
    r.words += count;
    return piece;
  };
  Word* const counter = take(1);
  const auto scores = static_cast<int64_t>(kernels::decode_step_workspace_cuda(o, cache));
  void* const workspace = take((scores + 7) / 8);
  const std::optional<decoding::Params> attention = decoding::step_params(o, a, cache, workspace);
  if (!attention || attention->part != kPart || attention->scan != kPiece) return {};
  Layers& s = r.arguments;
  s.attention = *attention;
  s.pages = p.to;
  s.hidden = static_cast<int>(p.hidden);
  s.inner = static_cast<int>(p.inner);
  s.eps = p.eps;
  s.x = p.x;
  s.y = p.y;
  s.counter = reinterpret_cast<uint32_t*>(counter);
  s.max_pieces = (s.attention.columns + kPiece - 1) / kPiece;
  s.stream = take(p.hidden / 2);
  s.heads = take(3 * heads / 2);
  s.attended = take(heads / 2);
  s.middle = take(p.hidden / 2);
  s.activated = take(p.inner / 2);
  s.parts = take(o.heads * s.attention.max_parts * 2);
  s.sums = take(heads * s.max_pieces);
  return r;
}

}  // namespace step

using namespace step;

bool supports_fused_decode_layers(const FusedDecodeLayers& p) {
  const kernels::Problem& o = p.problem;
  const auto whole = [](auto... sizes) { return ((sizes > 0 && sizes % kColumnsAtOnce == 0) && ...); };
  const auto small = [](auto... sizes) { return ((sizes <= INT_MAX / 16) && ...); };
  if (o.batch != 1 || o.q_length != 1 || o.heads != o.kv_heads || o.head_dim != o.value_dim ||
      (o.head_dim != 64 && o.head_dim != 128) || !o.causal || o.dtype != DType::bf16 ||
      !whole(p.hidden, p.inner, o.heads * o.head_dim) || !small(3 * o.heads * o.head_dim, p.hidden, p.inner) ||
      p.to.table.pairs % 8 != 0) {
    return false;
  }
  if (decoding::gpu_attribute(cudaDevAttrComputeCapabilityMajor) != 9 ||
      !decoding::gpu_attribute(cudaDevAttrCooperativeLaunch)) {
    return false;
  }
  return room_of(p, kernel_of(o.head_dim)).slots >= kUnits && plan(p).has_value();
}

int64_t fused_decode_sync_words(const FusedDecodeLayers& p) { return plan(p)->words; }

void fused_decode_layers(const FusedDecodeLayers& p, cudaStream_t stream) {
  const Kernel kernel = kernel_of(p.problem.head_dim);
  const Room room = room_of(p, kernel);
  Layers s = plan(p)->arguments;
  s.slots = room.slots;
  s.worker_bytes = room.worker_bytes;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(p.most_blocks > 0 ? std::min(p.most_blocks, kernel.multiprocessors)
                                                           : kernel.multiprocessors);
  config.blockDim = kLayerThreads;
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared + room.slots * kSlotBytes + kWorkers * room.worker_bytes);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  for (int64_t first = 0; first < p.count; first += kMaxLayers) {
    s.count = static_cast<int>(std::min<int64_t>(p.count - first, kMaxLayers));
    std::copy_n(p.layers + first, s.count, s.layers);
    kernels::cuda::check(cudaLaunchKernelEx(&config, kernel.run, s), "fused_decode_layers");
    s.x = p.y;
  }
}

}  // namespace lazy::ops::cuda
