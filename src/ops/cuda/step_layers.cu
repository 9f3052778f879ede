// The layers of a decoding step in one kernel. Its blocks run at once and wait for each other between phases, each of
// which has the work of one of the kernels that otherwise follow one another. A product's first weights are asked for
// before a block waits for what they are multiplied with; the next products' weights come into the second-level cache
// meanwhile.
#include <algorithm>
#include <climits>
#include <optional>

#include "attention/cuda/decode_kernels.cuh"
#include "attention/cuda/decode_spans.cuh"
#include "lazy/decode_step_cuda.h"
#include "ops/cuda/few_rows_product.cuh"
#include "ops/cuda/grid_barrier.cuh"
#include "ops/cuda/rope_pairs.cuh"

namespace lazy::ops::cuda {

namespace step {

using kernels::cuda::check;

constexpr int kBlocks = 2;               // a multiprocessor
constexpr int64_t kMostLayers = 30;      // of a launch
constexpr int kFewSpans = 9;             // of a row, which the next product adds up itself:
constexpr int kFewSums = 3 * kFewSpans;  // likewise, of all tokens
constexpr int kMostArguments = 4 << 10;  // bytes of a kernel's arguments

enum Phase { kQkv, kScores, kValues, kSpans, kOutput, kGateUp, kDown, kPhases };

struct Layers {
  decoding::Params attention;  // what is a layer's own is the layer's
  RopeToPages rope;            // q_out, positions, slots, table, interleaved
  int tokens, hidden, inner;
  float eps;
  const void *x, *residual;            // before the first layer; residual may be null
  void *attended, *activated, *mixed;  // products' inputs and results
  void *branch, *middle, *sum;         // the stream after a layer is branch + sum, within it mixed + middle
  uint32_t* counter;
  bool adds_spans;  // the product behind attention does
  int first, last;  // phases
  StepLayer layers[kMostLayers];
};
static_assert(sizeof(Layers) <= kMostArguments);

// What a step's tokens have in all layers.
template <int D>
struct Tokens {
  int64_t lengths[kRowsByThemselves], places[kRowsByThemselves];
  float2 angles[kRowsByThemselves][D / 2];  // cosines and sines of their pairs
};

// Of a block, one at a time.
union Room {
  ProductRoom<1> product;
  ProductRoom<2> pair;
  decoding::SpanRoom spans[kThreads / decoding::kThreads];
  float sums[decoding::kSumThreads];
};

template <typename T>
__device__ FewRows product_of(const Layers& s, const void* x, int in, const void* W, int out, void* y) {
  FewRows p{.type = DType::bf16};
  p.x = x;
  p.W = W;
  p.x_stride = p.in = in;
  p.rows = s.tokens;
  p.out = out;
  p.y = y;
  return p;
}

// Columns of q, k and v such that a tile of q or k has whole pairs.
template <int D>
__device__ Columns columns_of_heads(const Layers& s, int tile) {
  const int turned = (s.attention.heads + s.attention.kv_heads) * D, first = tile * kTile;
  if (first >= turned || s.rope.interleaved || s.rope.table.pairs == 0) return {first};
  return {first / D * D + first % D / 2, D / 2};
}

// A number of q, k or v, turned with the other one of its pair as rope_to_pages does it: to q, or to its page.
template <typename T, int D>
__device__ void store_head(const Layers& s, const StepLayer& l, const Tokens<D>& tokens, int row, int column, float y) {
  const int heads = s.attention.heads, kv_heads = s.attention.kv_heads, head = column / D, d = column % D;
  const bool interleaved = s.rope.interleaved, second = interleaved ? d % 2 != 0 : d >= D / 2;
  const float own = rounded<T>(y), other = __shfl_xor_sync(~0u, own, interleaved ? 1 : kTile / 2);
  if (row >= s.tokens || head >= heads + 2 * kv_heads) return;
  float x = own;
  if (head < heads + kv_heads && s.rope.table.pairs > 0) {
    const float2 angle = tokens.angles[row][interleaved ? d / 2 : d % (D / 2)];
    x = fmaf(second ? other : -other, angle.y, own * angle.x);
  }
  T* to = static_cast<T*>(s.rope.q_out) + (row * heads + head) * D;
  if (head >= heads) {
    const bool of_v = head >= heads + kv_heads;
    to = static_cast<T*>(of_v ? l.values : l.keys) +
         (tokens.places[row] * kv_heads + head - heads - (of_v ? kv_heads : 0)) * D;
  }
  to[d] = ops::cuda::rounded<T>(x);
}

// The block's tile of W (halves * out, in) to the second-level cache.
template <typename T>
__device__ void ask_for_tile(const void* W, int in, int out, int halves) {
  const int first = static_cast<int>(blockIdx.x) * kTile, rows = min(out - first, kTile);
  if (threadIdx.x != 0 || rows <= 0) return;
  for (int n = 0; n < halves; ++n) {
    decoding::ask_for(static_cast<const T*>(W) + static_cast<int64_t>(first + n * out) * in,
                      int64_t{rows} * in * static_cast<int64_t>(sizeof(T)));
  }
}

// What the layer's norms and attention read beside weights, to the second-level cache: keys and values of as many pages
// as there are blocks from block `first` on.
template <typename T, int D>
__device__ void ask_for_rest(const Layers& s, const StepLayer& l, const Tokens<D>& tokens, int first) {
  const decoding::Params& a = s.attention;
  int n = static_cast<int>(blockIdx.x) - first;
  if (threadIdx.x != 32 || n < 0) return;
  const auto ask_for_floats = [](const float* from, int count) {
    if (from && count >= 4) decoding::ask_for(from, count / 4 * 16);
  };
  if (n == 0) {
    ask_for_floats(l.norm, s.hidden);
    ask_for_floats(l.mlp_norm, s.hidden);
    ask_for_floats(l.distance_bias, a.heads * a.bias_window);
    for (const float* of_heads : {l.tau, l.sink, l.alibi_slopes}) ask_for_floats(of_heads, a.heads);
    return;
  }
  --n;
  if (a.window >= 0) return;
  for (int token = 0; token < s.tokens; ++token) {
    const int pages =
        static_cast<int>(min((tokens.lengths[token] + a.page_size.value - 1) / a.page_size.value, a.table_width));
    if (n < pages) {
      const int64_t page = a.block_table[token * a.table_width + n];
      if (page < 0 || page >= a.pages) return;
      for (void* pool : {l.keys, l.values}) {
        decoding::ask_for(static_cast<const T*>(pool) + page * a.k.batch, a.k.batch * static_cast<int64_t>(sizeof(T)));
      }
      return;
    }
    n -= max(pages, 0);
  }
}

// Most of a block's shared memory: a tile of 2816 numbers a row, or of 1280 of two matrices, or of 2048 beside
// attention's results.
template <typename T>
using LongTile = CopiedWeights<T, 1, 11, 11>;
template <typename T>
using ShortTile = CopiedWeights<T, 1, 8, 4>;
template <typename T>
using PairOfTiles = CopiedWeights<T, 2, 5, 4>;
constexpr int kWeightBytes = std::max(LongTile<__nv_bfloat16>::kBytes, PairOfTiles<__nv_bfloat16>::kBytes),
              kBesideBytes = kWeightBytes - ShortTile<__nv_bfloat16>::kBytes;

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, kBlocks) run_layers(const __grid_constant__ Layers s) {
  using Products = decoding::TensorCores<T, D>;
  using decoding::Params;
  constexpr int kGroups = kThreads / decoding::kThreads;
  extern __shared__ __align__(16) char memory[];
  __shared__ Room room;
  __shared__ Tokens<D> tokens;
  __shared__ uint32_t barrier_end;
  const GridBarrier barrier(s.counter, &barrier_end);
  const int block = blockIdx.x, blocks = gridDim.x, warp = threadIdx.x / 32;
  const int heads = s.attention.heads * D, all_heads = heads + 2 * s.attention.kv_heads * D;
  for (int n = threadIdx.x; n < s.tokens * D / 2; n += kThreads) {
    const int token = n / (D / 2), pair = n - token * (D / 2);
    if (pair == 0) {
      tokens.lengths[token] = s.attention.lengths[token];
      tokens.places[token] = s.rope.slots[token];
    }
    if (s.rope.table.pairs == 0) continue;
    float cos[1], sin[1];
    angles<1, true>(s.rope.table, s.rope.positions[token], pair, cos, sin);
    tokens.angles[token][pair] = {cos[0], sin[0]};
  }
  __syncthreads();
  ask_for_rest<T, D>(s, s.layers[s.first / kPhases], tokens, 0);

  for (int layer = s.first / kPhases; layer * kPhases < s.last; ++layer) {
    const StepLayer& l = s.layers[layer];
    const bool first_of_all = layer == 0 && !s.residual;
    const auto wanted = [&](Phase phase) {
      const int n = layer * kPhases + phase;
      return n >= s.first && n < s.last;
    };
    const auto multiply = [&]<typename Weights, bool NORM, bool SWIGLU>(const FewRows& p, const auto& columns,
                                                                        const auto& prepare, const auto& finish) {
      Product<T, Weights, NORM, SWIGLU> product(memory);
      product.begin(p, columns(block));
      barrier.wait();
      prepare();
      const int tiles = (static_cast<int>(p.out) + kTile - 1) / kTile;
      for (int tile = block; tile < tiles; tile += blocks) {
        if (tile != block) {
          __syncthreads();
          product.begin(p, columns(tile));
        }
        finish(product, columns(tile));
      }
      decoding::wait_for_copies<0>();
      barrier.arrive();
    };
    const auto in_order = [](int tile) { return Columns{tile * kTile}; };
    const auto nothing = [] {};
    // With what is known of it, which the compiler then knows too.
    const auto attention = [&] {
      Params p = s.attention;
      p.q_length = p.q.dim = p.k.dim = p.v.dim = p.out.dim = p.score_row = 1;
      p.head_dim = p.value_dim = D;
      p.q_aligned = p.causal = true;
      p.separate_states = false;
      p.round_batch = p.round_tile = 0;
      p.visible_counts = nullptr;
      p.lse = p.stats = p.score_stats = nullptr;
      p.dtype = DType::bf16;
      p.lengths = tokens.lengths;
      p.k.data = l.keys;
      p.v.data = l.values;
      p.distance_bias = l.distance_bias;
      p.tau = l.tau;
      p.sink = l.sink;
      p.alibi_slopes = l.alibi_slopes;
      return p;
    };

    if (wanted(kQkv)) {
      FewRows p = product_of<T>(s, layer == 0 ? s.x : s.branch, s.hidden, l.qkv, all_heads, nullptr);
      p.residual = layer == 0 ? s.residual : s.sum;
      p.sum = s.middle;
      p.norm_weight = l.norm;
      p.eps = s.eps;
      ask_for_tile<T>(l.output, heads, s.hidden, 1);
      ask_for_tile<T>(l.gate_up, s.hidden, s.inner, 2);
      multiply.template operator()<ShortTile<T>, true, false>(
          p, [&](int tile) { return columns_of_heads<D>(s, tile); }, nothing,
          [&](auto& product, const Columns& columns) {
            product.finish(p, columns, room.product, product.loader(p),
                           [&](int row, int column, float y) { store_head<T, D>(s, l, tokens, row, column, y); });
          });
    }
    if (wanted(kScores)) {
      const Params p = attention();
      barrier.wait();
      const int of_sequence = p.round_tiles * p.max_parts;
      for (int n = warp * blocks + block; n < p.batch * of_sequence; n += blocks * kWarps) {
        const int sequence = n / of_sequence, rest = n - sequence * of_sequence, part = rest / p.round_tiles;
        __syncwarp();
        decoding::score_part<Products, decoding::Pages::units>(
            p, decoding::make_tile(p, sequence, rest - part * p.round_tiles), p.max_parts - 1 - part,
            memory + warp * p.key_bytes);
      }
      barrier.arrive();
    }
    if (wanted(kValues)) {
      const Params p = attention();
      barrier.wait();
      const int group = threadIdx.x / decoding::kThreads, of_sequence = p.round_tiles * p.max_spans;
      decoding::SpanRoom& own = room.spans[group];
      for (int first = block; first < p.batch * of_sequence; first += kGroups * blocks) {
        const int n = first + group * blocks, sequence = n / of_sequence, rest = n - sequence * of_sequence;
        if (threadIdx.x % decoding::kThreads == 0) {
          const bool known = n < p.batch * of_sequence;
          own.t = decoding::make_tile(p, known ? sequence : 0, rest % p.round_tiles);
          own.span =
              known && rest / p.round_tiles < decoding::span_count(p, own.t.sequence) ? rest / p.round_tiles : -1;
        }
        __syncthreads();
        if (room.spans[0].span >= 0 || room.spans[1].span >= 0) {
          decoding::sum_span<Products, true>(p, own, own.span >= 0, memory + group * decoding::kWarps * p.value_bytes);
        }
        __syncthreads();
      }
      barrier.arrive();
    }
    if (wanted(kSpans) && !s.adds_spans) {
      const Params p = attention();
      barrier.wait();
      for (int row = block; row < s.tokens * p.heads; row += blocks) {
        __syncthreads();
        decoding::add_spans_of(p, row, room.sums);
      }
      barrier.arrive();
    }
    if (wanted(kOutput)) {
      ask_for_tile<T>(l.down, s.inner, s.hidden, 1);
      if (layer * kPhases + kPhases < s.last) {
        ask_for_tile<T>(s.layers[layer + 1].qkv, s.hidden, all_heads, 1);
        ask_for_rest<T, D>(s, s.layers[layer + 1], tokens, s.hidden / kTile);
      }
      const FewRows p = product_of<T>(s, s.attended, heads, l.output, s.hidden, s.mixed);
      T* const results = reinterpret_cast<T*>(memory + ShortTile<T>::kBytes);  // attention's, where there is room
      const auto add_up = [&] {
        if (!s.adds_spans || block * kTile >= s.hidden) return;
        const Params a = attention();
        for (int n = threadIdx.x * 4; n < s.tokens * heads; n += kThreads * 4) {
          const int row = n / D, token = row / a.heads;
          const decoding::Sequence sequence = decoding::read_sequence(a, token);
          const float4 x = decoding::sum_of_spans<D, kFewSpans>(a, row, decoding::span_count(a, sequence), n - row * D);
          const auto pair = [&](float a, float b) {
            return sequence.length < 0 ? kernels::cuda::pack<T>(NAN, NAN) : kernels::cuda::pack<T>(a, b);
          };
          *reinterpret_cast<uint2*>(results + n) = {pair(x.x, x.y), pair(x.z, x.w)};
        }
        __syncthreads();
      };
      multiply.template operator()<ShortTile<T>, false, false>(
          p, in_order, add_up, [&](auto& product, const Columns& columns) {
            product.finish(
                p, columns, room.product,
                [&](int row, int k) {
                  return s.adds_spans ? *reinterpret_cast<const uint4*>(results + row * heads + k)
                                      : product.loader(p)(row, k);
                },
                product.storer(p));
          });
    }
    if (wanted(kGateUp)) {
      FewRows p = product_of<T>(s, s.mixed, s.hidden, l.gate_up, s.inner, s.activated);
      p.residual = first_of_all ? s.x : s.middle;
      p.sum = s.sum;
      p.norm_weight = l.mlp_norm;
      p.eps = s.eps;
      multiply.template operator()<PairOfTiles<T>, true, true>(
          p, in_order, nothing, [&](auto& product, const Columns& columns) { product.finish(p, columns, room.pair); });
    }
    if (wanted(kDown)) {
      const FewRows p = product_of<T>(s, s.activated, s.inner, l.down, s.hidden, s.branch);
      multiply.template operator()<LongTile<T>, false, false>(
          p, in_order, nothing,
          [&](auto& product, const Columns& columns) { product.finish(p, columns, room.product); });
    }
  }
}

// The kernel of a head size, and what is known of it on the current device.
struct Kernel {
  void (*run)(Layers);
  int most_shared = 0;  // dynamic memory of a block
};

template <int D>
Kernel prepare() {
  const auto run = run_layers<__nv_bfloat16, D>;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, run), "to describe step_layers");
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "to name the device");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "to describe the device");
  most -= static_cast<int>(attributes.sharedSizeBytes);
  check(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, most), "to prepare step_layers");
  check(cudaFuncSetAttribute(run, cudaFuncAttributePreferredSharedMemoryCarveout, 100), "to prepare step_layers");
  return {run, most};
}

Kernel kernel_of(int64_t head_dim) {
  static const Kernel small = prepare<64>(), large = prepare<128>();
  return head_dim <= 64 ? small : large;
}

int shared_bytes(const decoding::Params& p) {
  return std::max(kWarps * std::max(p.key_bytes, p.value_bytes), kWeightBytes);
}

// Of the first layer; the parts of `memory`, which may be null.
struct Division {
  std::optional<decoding::Params> attention;
  char *q, *attended, *mixed, *activated, *middle, *workspace;
  size_t bytes;
};

Division divide(const StepLayers& p) {
  using Half = __nv_bfloat16;
  Division d{};
  const kernels::Problem& o = p.problem;
  const int64_t heads = o.heads * o.head_dim, kv_heads = o.kv_heads * o.head_dim;
  const kernels::CacheSize cache{p.attention.table_width * p.attention.page_size, p.pages};
  kernels::cuda::Arena arena(p.memory);
  const auto take = [&](char*& piece, int64_t numbers) {
    arena.take(piece, o.batch * numbers * static_cast<int64_t>(sizeof(Half)));
  };
  take(d.q, heads);
  take(d.attended, heads);
  take(d.mixed, p.hidden);
  take(d.activated, p.inner);
  take(d.middle, p.hidden);
  arena.take(d.workspace, static_cast<int64_t>(kernels::decode_step_workspace_cuda(o, cache)));
  d.bytes = arena.used();
  kernels::Decode<float> a = p.attention;
  a.q = {d.q, heads, heads, o.head_dim, 1};
  a.out = {d.attended, heads, heads, o.head_dim, 1};
  a.k = a.v = {nullptr, p.attention.page_size * kv_heads, kv_heads, o.head_dim, 1};
  kernels::CudaCall call;
  call.workspace = d.workspace;
  d.attention = decoding::layer_params(o, a, cache, call);
  return d;
}

// Whether the product behind attention adds up the spans: few numbers, or many blocks would read a lot.
bool adds_spans(const StepLayers& p, const decoding::Params& attention) {
  const kernels::Problem& o = p.problem;
  return attention.max_spans <= kFewSpans && o.batch * attention.max_spans <= kFewSums &&
         o.batch * o.heads * o.head_dim * static_cast<int64_t>(sizeof(__nv_bfloat16)) <= kBesideBytes;
}

bool fits(const StepLayers& p, const decoding::Params& attention) {
  constexpr int64_t kWidth = kWide<__nv_bfloat16>;
  const kernels::Problem& o = p.problem;
  const auto whole = [](auto... sizes) { return ((sizes % kWidth == 0) && ...); };
  const auto small = [](auto... sizes) { return ((sizes <= INT_MAX / 4) && ...); };
  return o.batch <= kRowsByThemselves && o.q_length == 1 && o.head_dim == o.value_dim &&
         (o.head_dim == 64 || o.head_dim == 128) && o.causal && o.dtype == DType::bf16 && whole(p.hidden, p.inner) &&
         (p.rope.table.pairs == 0 || 2 * p.rope.table.pairs == o.head_dim) &&
         small((o.heads + 2 * o.kv_heads) * o.head_dim, p.hidden, p.inner) &&
         o.batch * attention.round_tiles * attention.max_parts <= INT_MAX &&
         shared_bytes(attention) <= kernel_of(o.head_dim).most_shared;
}

int blocks_at_once(const Kernel& kernel, int bytes) {
  int device = 0, multiprocessors = 0, each = 0;
  check(cudaGetDevice(&device), "to name the device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "to describe the device");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel.run, kThreads, static_cast<size_t>(bytes)),
        "to describe step_layers");
  return multiprocessors * std::min(each, kBlocks);
}

}  // namespace step

using namespace step;

bool serves_step_layers(const StepLayers& p) {
  int device = 0, major = 0, cooperative = 0;
  check(cudaGetDevice(&device), "to name the device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "to describe the device");
  check(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device), "to describe the device");
  if (!cooperative || (major != 9 && !p.by_phase)) return false;
  const Division d = divide(p);
  return d.attention && fits(p, *d.attention) &&
         blocks_at_once(kernel_of(p.problem.head_dim), shared_bytes(*d.attention)) > 0;
}

size_t step_layers_memory(const StepLayers& p) { return divide(p).bytes; }

void step_layers(const StepLayers& p, cudaStream_t stream) {
  const Division d = divide(p);
  const kernels::Problem& o = p.problem;
  Layers s{.attention = *d.attention, .rope = p.rope};
  s.rope.q_out = d.q;
  s.tokens = static_cast<int>(o.batch);
  s.hidden = static_cast<int>(p.hidden);
  s.inner = static_cast<int>(p.inner);
  s.eps = p.eps;
  s.x = p.x;
  s.attended = d.attended;
  s.activated = d.activated;
  s.mixed = d.mixed;
  s.middle = d.middle;
  s.branch = p.branch;
  s.sum = p.sum;
  s.counter = p.counter;
  s.adds_spans = adds_spans(p, s.attention);
  const Kernel kernel = kernel_of(o.head_dim);
  const int bytes = shared_bytes(s.attention),
            most = std::min<int>(blocks_at_once(kernel, bytes), GridBarrier::kMostBlocks);
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(p.most_blocks > 0 ? std::min(p.most_blocks, most) : most);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  for (int64_t first = 0; first < p.count; first += kMostLayers) {
    const int64_t count = std::min(p.count - first, kMostLayers);
    std::copy_n(p.layers + first, count, s.layers);
    const int phases = static_cast<int>(count) * kPhases, at_once = p.by_phase ? 1 : phases;
    for (s.first = 0; s.first < phases; s.first = s.last) {
      s.last = s.first + at_once;
      check(cudaLaunchKernelEx(&config, kernel.run, s), "step_layers");
    }
    s.x = p.branch;
    s.residual = p.sum;
  }
}

}  // namespace lazy::ops::cuda
