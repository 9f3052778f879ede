// Decode's entry: checks, the division of the work, the workspace, and the plan kernel, which looks at the lengths.
#include <algorithm>
#include <bit>
#include <stdexcept>

#include "attention/cuda/decode_items.cuh"
#include "attention/cuda/decode_queue.cuh"

namespace lazy::kernels {

namespace cuda::decoding {

namespace {

constexpr int kPlanThreads = 512;

__device__ Sequence look_at(const Params& p, int b) {
  const int64_t length = p.lengths[b];
  const bool good = length >= 0 && length <= p.capacity && (!p.visible_counts || p.visible_counts[b] >= p.q_length);
  if (!good) return {-1, 0, 0};
  const int n = static_cast<int>(length);
  const int first = visible(p, n, 0).begin / kPad * kPad;  // both ends of what a row sees grow with the row
  return {n, first, max(first, visible(p, n, p.q_length - 1).end)};
}

// One block: looks at every sequence, lays out the queue, clears the counters.
__global__ void __launch_bounds__(kPlanThreads) plan(const __grid_constant__ Params p) {
  __shared__ int warps[kPlanThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, phases = phase_count(p);
  let_next_start();
  for (int b = threadIdx.x; b < p.batch; b += kPlanThreads) p.sequences[b] = look_at(p, b);
  for (int n = threadIdx.x; n < p.counters; n += kPlanThreads) p.queue[n] = 0;
  int before = 0;                           // items of the phases before these
  for (int first = 0; first < phases; first += kPlanThreads) {
    const int phase = first + threadIdx.x, unit = unit_of_phase(p, phase);
    int items = 0;
    if (unit >= 0 && unit < p.units) {
      const Sequence s = look_at(p, unit / p.blocks);
      items = p.unit_tiles * (phase % 2 ? value_items(p, s) : key_items(p, s));
    }
    int sum = items;                        // of this phase and those before it
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < kPlanThreads / 32; ++w) {
      if (w < warp) sum += warps[w];
      all += warps[w];
    }
    if (phase < phases) p.phases[phase] = before + sum - items;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) p.phases[phases] = before;
}

int round_up(int64_t x, int64_t to) { return static_cast<int>((x + to - 1) / to * to); }
int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

// How the work is divided follows from the shape; of the capacity only the largest powers of two matter, so that a cache
// gives the same bits wherever it lies.
void divide(Params& p) {
  const int dims = std::max(p.head_dim, p.value_dim), size = dims <= 64 ? 64 : dims <= 128 ? 128 : 256;
  const int rows = std::min(p.rows, kRows), power = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  // A warp reads 32 KiB of K in a row, or a list of alive keys whose weights fill 8 KiB. Smaller pieces where there are
  // few tiles to keep the blocks busy with.
  const int64_t tiles = int64_t{p.batch} * p.kv_heads * p.tiles;
  const int shrink = tiles >= 128 ? 1 : tiles >= 32 ? 2 : 4;
  p.part = std::max(std::min(16384 / size, 1024 / power) / shrink, 32);
  p.scan = std::max(std::min(32768 / size, 1024 / power) / shrink, 32);
  const int64_t span = p.window >= 0 ? std::min<int64_t>(p.capacity, int64_t{p.window} + p.q_length) : p.capacity;
  p.columns = round_up(span + kPad - 1, 32);
  p.most_parts = static_cast<int>(divide_up(p.columns, int64_t{p.part} * kWarps)) * kWarps;
  // Sums of V that the last block adds up: a few hundred a row at most.
  p.chunks = 1;
  while (divide_up(p.columns, int64_t{p.chunks} * kWarps * p.scan) > 256) p.chunks *= 2;
  p.most_spans = static_cast<int>(divide_up(p.columns, int64_t{p.chunks} * kWarps * p.scan));
  // A few units at least, so that V's items of one run beside K's of the next; enough key items before the first value item
  // that the blocks that take it need not wait; as many again until its scores are overwritten.
  p.blocks = static_cast<int>(std::clamp<int64_t>(divide_up(8, std::max(p.batch, 1)), 1, p.kv_heads));
  while (p.kv_heads % p.blocks != 0) --p.blocks;
  p.units = p.batch * p.blocks;
  p.unit_tiles = p.kv_heads / p.blocks * p.tiles;
  const int64_t items = int64_t{p.unit_tiles} * (p.most_parts / kWarps);
  p.lag = static_cast<int>(std::clamp<int64_t>(divide_up(1024, std::max<int64_t>(items, 1)), 1, std::max(p.units, 1)));
  p.slots = std::max(std::min(2 * p.lag + 2, p.units), 1);
  const int reduction = rows * p.value_dim * 4;
  p.warp_bytes = round_up(std::max({key_bytes(p.part, rows), list_bytes(p.scan, power), reduction}), 16);
}

// Points the parameters into the workspace; with a null base it only measures.
size_t lay_out(Params& p, void* base) {
  size_t used = 0;
  auto take = [&]<typename T>(T*& piece, int64_t count) {
    piece = base ? reinterpret_cast<T*>(static_cast<char*>(base) + used) : nullptr;
    used += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  };
  const int64_t rows = int64_t{p.batch} * p.heads * p.q_length, tiles = int64_t{p.batch} * p.kv_heads * p.tiles;
  take(p.scores, int64_t{p.slots} * (p.kv_heads / p.blocks) * p.rows * p.columns);
  take(p.parts, rows * p.most_parts);
  take(p.states, rows);
  take(p.sums, rows * p.most_spans * p.value_dim);
  take(p.masses, rows * p.most_spans);
  take(p.firsts, rows);
  take(p.sequences, p.batch);
  take(p.phases, phase_count(p) + 1);
  p.counters = static_cast<int>(3 * tiles + 1);
  take(p.queue, p.counters);
  p.done_keys = p.queue + 1;
  p.done_values = p.done_keys + tiles;
  p.state = p.done_values + tiles;
  return used;
}

Params make_params(const Problem& p, const Decode<float>& a, const CacheSize& cache) {
  auto tensor = [](const auto& view) {
    return Tensor{const_cast<void*>(static_cast<const void*>(view.data)), view.batch, view.token, view.head, view.dim};
  };
  Params r{};
  r.q = tensor(a.q);
  r.k = tensor(a.k);
  r.v = tensor(a.v);
  r.out = tensor(a.out);
  r.distance_bias = a.distance_bias;
  r.tau = a.tau;
  r.sink = a.sink;
  r.alibi_slopes = a.alibi_slopes;
  r.lse = a.lse;
  r.stats = a.stats;
  r.lengths = a.lengths;
  r.block_table = a.block_table;
  r.visible_counts = a.visible_counts;
  r.table_width = a.table_width;
  r.pages = cache.pages;
  r.page_size = Divisor(static_cast<int>(std::clamp<int64_t>(a.page_size, 1, int64_t{1} << 30)));
  r.capacity = static_cast<int>(cache.keys);
  r.batch = static_cast<int>(p.batch);
  r.q_length = static_cast<int>(p.q_length);
  r.heads = static_cast<int>(p.heads);
  r.kv_heads = static_cast<int>(p.kv_heads);
  r.head_dim = static_cast<int>(p.head_dim);
  r.value_dim = static_cast<int>(p.value_dim);
  r.window = static_cast<int>(std::clamp<int64_t>(p.window, -1, int64_t{1} << 30));
  r.bias_window = a.distance_bias ? static_cast<int>(std::min<int64_t>(p.bias_window, int64_t{1} << 30)) : 0;
  r.scale = static_cast<float>(p.scale);
  r.sigmoid_bias = static_cast<float>(p.sigmoid_bias);
  r.dtype = p.dtype;
  r.normalizer = p.normalizer;
  r.causal = p.causal;
  r.per_visible = p.offset == Offset::per_visible;
  r.group = r.heads / r.kv_heads;
  r.rows = r.group * r.q_length;
  r.tiles = (r.rows + kRows - 1) / kRows;
  divide(r);
  return r;
}

// 16 bytes at a time.
bool aligned(const Tensor& x) {
  return x.dim == 1 && x.token % 8 == 0 && x.head % 8 == 0 && x.batch % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

std::string unmet_by_tensor_cores(const Problem& p) {
  if (p.dtype == DType::f32) return "decode's portable kernel takes bfloat16 or float16, received float32";
  if (p.head_dim % 8 != 0 || p.value_dim % 8 != 0) {
    return "decode's portable kernel serves head sizes that are multiples of 8, received " + std::to_string(p.head_dim) +
           " and " + std::to_string(p.value_dim);
  }
  return {};
}

}  // namespace

}  // namespace cuda::decoding

std::string unmet_condition_decode_cuda(const Problem& p, const CacheSize& cache, CudaKernel kernel) {
  if (p.dtype == DType::f64) return "the CUDA kernels take float32, bfloat16 or float16, received float64";
  if (p.head_dim < 1 || p.value_dim < 1 || p.head_dim > 256 || p.value_dim > 256) {
    return "the CUDA kernels serve head sizes from 1 to 256, received " + std::to_string(p.head_dim) + " and " +
           std::to_string(p.value_dim);
  }
  if (std::max(p.q_length, cache.keys) >= int64_t{1} << 30) {
    return "the CUDA kernels serve lengths below 2^30, received " + std::to_string(std::max(p.q_length, cache.keys));
  }
  // Items, counters and rows are counted in 32 bits.
  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.heads) * static_cast<double>(p.q_length);
  if (rows * (static_cast<double>(cache.keys) / 32 + 2) >= 0x1p31) {
    return "decode on CUDA serves fewer than 2^36 keys times rows, received " + std::to_string(p.batch) + " sequences of " +
           std::to_string(p.heads) + " heads, " + std::to_string(p.q_length) + " rows and up to " +
           std::to_string(cache.keys) + " keys";
  }
  if (kernel == CudaKernel::hopper) return "decode has no hopper kernel";
  if (kernel == CudaKernel::portable) return cuda::decoding::unmet_by_tensor_cores(p);
  return {};
}

size_t decode_workspace_cuda(const Problem& p, const CacheSize& cache) {
  if (p.batch * p.heads * p.q_length == 0 || !unmet_condition_decode_cuda(p, cache, CudaKernel::automatic).empty()) return 0;
  cuda::decoding::Params r = cuda::decoding::make_params(p, {}, cache);
  return cuda::decoding::lay_out(r, nullptr);
}

void decode_cuda(const Problem& p, const Decode<float>& a, const CacheSize& cache, const CudaCall& call) {
  using namespace cuda::decoding;
  const std::string unmet = unmet_condition_decode_cuda(p, cache, call.kernel);
  if (!unmet.empty()) throw std::invalid_argument(unmet);
  if (p.batch * p.heads * p.q_length == 0) return;
  Params r = make_params(p, a, cache);
  lay_out(r, call.workspace);
  const bool in_place = aligned(r.k) && aligned(r.v);
  if (call.kernel == CudaKernel::portable && !in_place) {
    throw std::invalid_argument(
        "decode's portable kernel needs the caches' last axis contiguous, other strides a multiple of 8 and "
        "data aligned to 16 bytes");
  }
  r.q_aligned = aligned(r.q);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  plan<<<1, kPlanThreads, 0, stream>>>(r);
  cuda::check_launch("decode's plan");
  if (call.kernel == CudaKernel::plain || !in_place || !unmet_by_tensor_cores(p).empty()) return decode_plain(r, stream);
  const int dims = std::max(r.head_dim, r.value_dim);
  dims <= 64 ? decode_64(r, stream) : dims <= 128 ? decode_128(r, stream) : decode_256(r, stream);
}

}  // namespace lazy::kernels
