// Entry points of decode: checks of the arguments, division of the work among blocks and warps, workspace layout.
#include <algorithm>
#include <bit>
#include <stdexcept>

#include "attention/cuda/decode_list.cuh"
#include "attention/cuda/decode_products.cuh"
#include "attention/cuda/launchers.h"
#include "lazy/decode_step_cuda.h"

namespace lazy::kernels {

namespace cuda::decoding {

namespace {

// Tuning constants, chosen by measurement.
constexpr int64_t kItems = 8192;     // number of warps with separate work that is enough to fill the GPU
constexpr int kKeyBytes = 64 << 10;  // maximum number of bytes of K that one warp reads
constexpr int64_t kScans = 2048;     // target number of warps in the values kernel; about as many run concurrently
constexpr int kScanMost = 1024;      // maximum number of keys per warp in the values kernel
// Maximum number of scores in memory (128 MiB). Larger problems are processed in several rounds, each of which launches
// the kernels for some of the tiles. Only a round that consists of a single tile may exceed the maximum.
constexpr int64_t kRoundScores = int64_t{1} << 25;
// The separate states kernel runs if a row has more parts than this. A part is the range of keys that one warp of the
// scores kernel processes.
constexpr int kFewParts = 256;
// Keys per warp in the scores kernel (part) and in the values kernel (scan), if the division of the keys must not
// depend on the batch size (see divide) or if by_tile is set.
constexpr int kInvariantPart = 64, kInvariantScan = 128;
// Params::by_tile selects a single kernel with one block per tile, in place of several kernels.
constexpr int64_t kTiles = 256;       // minimum number of tiles for by_tile
constexpr int64_t kTileReach = 4096;  // maximum number of keys per tile for by_tile

int round_up(int64_t x, int64_t to) { return static_cast<int>((x + to - 1) / to * to); }
int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

// Returns the smallest instantiated head size that supports the problem.
int head_size(const Params& p) { return head_size_limit(p.head_dim, p.value_dim); }

// Divides the work among blocks and warps according to the shape of the problem. The division determines the rounding
// of the results. It uses the capacity of the cache only rounded to a power of two, so that caches of similar capacity
// give bitwise equal results. invariant: the results must depend neither on the batch size nor on the capacity.
void divide(Params& p, bool invariant) {
  const int size = head_size(p), rows = std::min(p.rows, kRows),
            power = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  const int64_t tiles = int64_t{p.batch} * p.kv_heads * p.tiles;
  const int64_t span = p.window >= 0 ? std::min<int64_t>(p.capacity, int64_t{p.window} + p.q_length) : p.capacity;
  p.columns = round_up(span + kPad - 1, 32);
  // `keys` chooses the number of keys per warp: a power of two between 32 and `most` that is near of_warp, or a fixed
  // number if `invariant` is set. `reach` is the number of keys rounded to a power of two, so that similar lengths get
  // the same division.
  const auto power_below = [](int64_t x) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(x))); };
  const int64_t reach = power_below(int64_t{p.columns} * 4 / 3);
  p.by_tile = tiles >= kTiles && reach <= kTileReach && !needs_all_scores(p.normalizer);
  invariant |= p.by_tile;
  const auto keys = [&](int fixed, int64_t of_warp, int64_t most) {
    if (invariant) return static_cast<int>(std::min<int64_t>(fixed, most));
    return static_cast<int>(std::clamp<int64_t>(power_below(of_warp), 32, std::max<int64_t>(most, 32)));
  };
  // A warp stores at most 4 KiB of scores. This bounds its shared memory.
  p.part = keys(kInvariantPart, std::max(tiles * reach / kItems, std::min<int64_t>(tiles * reach / 2048, 128)),
                std::min(kKeyBytes / 2 / size, 1024 / power));
  p.scan = keys(kInvariantScan, tiles * reach / kScans, kScanMost);
  p.max_parts = static_cast<int>(divide_up(p.columns, p.part));
  p.separate_states = needs_all_scores(p.normalizer) || reach / p.part > kFewParts;
  // Double the keys per warp until each row has at most 512 partial sums of V, and all rows together have no more than
  // are needed to fill the GPU.
  const auto spans = [&] { return divide_up(reach, span_keys(p)); };
  while (!invariant && (spans() > 512 || (spans() > 1 && tiles * spans() > kItems))) p.scan *= 2;
  p.max_spans = static_cast<int>(divide_up(p.columns, span_keys(p)));
  // The tiles are processed in rounds whose scores fit in memory. A round consists of whole sequences if at least one
  // fits, otherwise of some tiles of one sequence. All rounds have about the same size. For the exponential family, the
  // scores of a key for all rows of a tile are adjacent. For other families, the scores of a row are adjacent, because
  // a block reads one row at a time.
  const bool by_key = in_family<NormalizerFamily::exponential>(p.normalizer);
  p.score_rows = by_key ? power : rows;
  p.score_row = by_key ? 1 : p.columns;
  p.score_key = by_key ? power : 1;
  const int64_t of_sequence = int64_t{p.kv_heads} * p.tiles;
  const int64_t at_once = std::max<int64_t>(kRoundScores / (int64_t{p.score_rows} * p.columns), 1);
  const int64_t sequences = std::clamp<int64_t>(at_once / of_sequence, 1, 65535);
  p.round_sequences = static_cast<int>(divide_up(p.batch, divide_up(p.batch, sequences)));
  p.round_tiles = static_cast<int>(divide_up(of_sequence, divide_up(of_sequence, at_once)));
}

// Sets the workspace pointers of the parameters and returns the size of the workspace. If `base` is null, the pointers
// are null and only the size is used.
size_t lay_out(Params& p, void* base) {
  Arena arena(base);
  const int64_t rows = int64_t{p.batch} * p.heads * p.q_length;
  arena.take(p.scores, int64_t{p.round_sequences} * p.round_tiles * p.score_rows * p.columns);
  arena.take(p.parts, rows * p.max_parts);
  arena.take(p.states, rows);
  arena.take(p.sums, rows * p.max_spans * (p.by_tile ? kWarps : 1) * p.value_dim);
  arena.take(p.masses, rows * p.max_spans);
  arena.take(p.firsts, rows);
  return arena.used();
}

Params make_params(const Problem& p, const Decode<float>& a, const CacheSize& cache, bool step) {
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
  r.score_stats = a.score_stats;
  r.lengths = a.lengths;
  r.block_table = a.block_table;
  r.visible_counts = a.visible_counts;
  r.table_width = a.table_width;
  r.pages = cache.pages;
  r.page_size = Divisor(static_cast<int>(std::clamp<int64_t>(a.page_size, 1, int64_t{1} << 30)));
  r.pages_of = !a.block_table            ? PageAlignment::none
               : a.page_size % kPad == 0 ? PageAlignment::units
                                         : PageAlignment::keys;
  r.capacity = static_cast<int>(cache.keys);
  r.batch = static_cast<int>(p.batch);
  r.q_length = static_cast<int>(p.q_length);
  r.heads = static_cast<int>(p.heads);
  r.kv_heads = static_cast<int>(p.kv_heads);
  r.head_dim = static_cast<int>(p.head_dim);
  r.value_dim = static_cast<int>(p.value_dim);
  r.window = static_cast<int>(std::clamp<int64_t>(p.window, -1, int64_t{1} << 30));
  r.bias_window = a.distance_bias ? static_cast<int>(std::min<int64_t>(p.bias_window, int64_t{1} << 30)) : 0;
  r.softcap = softcap_of(p);
  r.scale = r.softcap ? 1 : static_cast<float>(p.scale);
  r.sigmoid_bias = static_cast<float>(p.sigmoid_bias);
  r.dtype = p.dtype;
  r.normalizer = p.normalizer;
  r.causal = p.causal;
  r.per_visible = p.offset == Offset::per_visible;
  r.group = r.heads / r.kv_heads;
  r.rows = r.group * r.q_length;
  r.tiles = (r.rows + kRows - 1) / kRows;
  r.after_kernel = step;
  divide(r, step);
  return r;
}

}  // namespace

}  // namespace cuda::decoding

static size_t workspace(const Problem& p, const CacheSize& cache, bool step) {
  if (p.batch * p.heads * p.q_length == 0 || !unmet_condition_decode_cuda(p, cache, CudaKernel::automatic).empty())
    return 0;
  cuda::decoding::Params r = cuda::decoding::make_params(p, {}, cache, step);
  return cuda::decoding::lay_out(r, nullptr);
}

static void run(const Problem& p, const Decode<float>& a, const CacheSize& cache, const CudaCall& call, bool step) {
  using namespace cuda::decoding;
  const std::string unmet = unmet_condition_decode_cuda(p, cache, call.kernel);
  if (!unmet.empty()) throw std::invalid_argument(unmet);
  if (p.batch * p.heads * p.q_length == 0) return;
  Params r = make_params(p, a, cache, step);
  lay_out(r, call.workspace);
  const bool in_place = aligned(r.k) && aligned(r.v);
  if (call.kernel == CudaKernel::portable && !in_place) {
    throw std::invalid_argument(
        "decode's portable kernel requires caches with a contiguous last axis, other strides divisible by 8 and "
        "data aligned to 16 bytes");
  }
  r.q_aligned = aligned(r.q);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const bool plain = call.kernel == CudaKernel::plain || !in_place ||
                     !unmet_condition_decode_cuda(p, cache, CudaKernel::portable).empty();
  const int rows = std::min(r.rows, kRows), ring = plain ? 0 : ring_bytes(head_size(r));
  const auto offsets = [&](int keys) {
    return plain || r.pages_of == PageAlignment::keys ? keys : r.pages_of == PageAlignment::units ? keys / kPad : 0;
  };
  r.key_bytes = round_up(key_bytes(r.part, rows, offsets(r.part), plain, ring), 16);
  const int listed = cuda::in_family<NormalizerFamily::exponential>(r.normalizer) ? r.score_rows : kRows;
  r.value_bytes = round_up(std::max(ring + list_bytes(listed), rows * r.value_dim * 4), 16);
  const int of_warp = static_cast<int>(divide_up(r.max_parts, kWarps)) * r.part;
  r.tile_bytes = round_up(std::max(key_bytes(r.part, rows, offsets(of_warp), false, ring), r.value_bytes), 16);
  r.by_tile = r.by_tile && !plain && !r.stats && !r.score_stats && r.pages_of != PageAlignment::keys;
  if (plain) return decode_plain(r, stream);
  serves_decode_row(r) ? decode_row(r, stream) : decode_tensor_cores(r, stream);
}

std::optional<cuda::decoding::Params> cuda::decoding::step_params(const Problem& p, const Decode<float>& a,
                                                                  const CacheSize& cache, void* workspace) {
  if (!in_family<NormalizerFamily::exponential>(p.normalizer) ||
      !unmet_condition_decode_cuda(p, cache, CudaKernel::portable).empty()) {
    return {};
  }
  Params r = make_params(p, a, cache, true);
  if (r.pages_of != PageAlignment::units || r.lse || r.stats || r.score_stats) return {};
  lay_out(r, workspace);
  return r;
}

size_t decode_workspace_cuda(const Problem& p, const CacheSize& cache) { return workspace(p, cache, false); }
size_t decode_step_workspace_cuda(const Problem& p, const CacheSize& cache) { return workspace(p, cache, true); }

void decode_cuda(const Problem& p, const Decode<float>& a, const CacheSize& cache, const CudaCall& call) {
  run(p, a, cache, call, false);
}
void decode_step_cuda(const Problem& p, const Decode<float>& a, const CacheSize& cache, const CudaCall& call) {
  run(p, a, cache, call, true);
}

}  // namespace lazy::kernels
